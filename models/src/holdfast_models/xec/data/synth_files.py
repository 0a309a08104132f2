"""Synthetic events as ROOT files, in the form of the experiment's own.

LZ4, because events are mostly noise that nothing compresses well: zlib makes files 8 % smaller,
is written 18 times and read 9 times as slowly.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast import HoldfastError

from ..settings import SynthSettings
from .branches import BRANCHES, import_uproot
from .made_once import made_once, name_of
from .synthetic import GROUP, generate

FILE_EVENTS = 32768
_BASKET = 2 * GROUP  # events that are compressed, and later read, together
_VERSION = 1  # of the generator: another one makes other events of the same settings
_REPORTED = 10.0  # seconds between two lines
_DTYPES = {torch.float32: np.float32, torch.int64: np.int32, torch.bool: np.bool_}

Say = Callable[[str], None]


def ensure_synth(settings: SynthSettings, *, say: Say = print) -> tuple[str, str]:
    """Folders of files to train and to validate on, generated where they are not there yet.

    Validation events are those after the training events: with the same gains and dead sensors.
    """
    if not settings.events:
        raise HoldfastError("data.synth.events is 0; set how many events to generate")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = Path(settings.folder).expanduser()
    decides = dataclasses.asdict(dataclasses.replace(settings, folder=""))

    def make(part: Path) -> None:
        counts = {"train": settings.events, "val": settings.validation}
        say(f"data: generating {sum(counts.values())} events in {folder} on {device}")
        first = 0
        for name, count in counts.items():
            (part / name).mkdir()
            for number, start in enumerate(range(0, count, FILE_EVENTS)):
                size = min(FILE_EVENTS, count - start)
                path = part / name / f"{number:03d}.root"
                write_events(path, settings, size, first=first + start, device=device, say=say)
            first += -(-count // GROUP) * GROUP  # a group is made as a whole

    made = made_once(folder / name_of("synth", _VERSION, device, decides), make)
    return str(made / "train"), str(made / "val")


def write_events(
    path: str | Path,
    settings: SynthSettings,
    count: int,
    *,
    first: int = 0,
    device: str = "cpu",
    say: Say | None = None,
) -> None:
    """Write events ``first`` to ``first + count`` of a set into one file."""
    write_batches(path, _blocks(settings, count, first, device, Path(path).name, say))


def write_batches(path: str | Path, batches: Iterator[dict[str, Tensor]]) -> None:
    """Write batches of events, named as in this package; each is a basket of the file."""
    uproot = import_uproot()
    with uproot.recreate(path, compression=uproot.LZ4(1)) as file:
        tree = None
        for batch in batches:
            columns = {
                BRANCHES.get(key, key): value.cpu().numpy().astype(_DTYPES[value.dtype], copy=False)
                for key, value in batch.items()
            }
            if "dead" in columns:
                columns["nDead"] = columns["dead"].sum(1, dtype=np.int32)
            if tree is None:
                # With their shape: a branch declared by its dtype alone takes no rows of vectors.
                kinds = {
                    key: np.dtype((column.dtype, column.shape[1:]))
                    for key, column in columns.items()
                }
                tree = file.mktree("tree", kinds)
            tree.extend(columns)


def _blocks(
    settings: SynthSettings, count: int, first: int, device: str, name: str, say: Say | None
) -> Iterator[dict[str, Tensor]]:
    """Events, with a line about the progress now and then and at the end."""
    begin = reported = time.monotonic()
    for done in range(0, count, _BASKET):
        size = min(_BASKET, count - done)
        yield generate(settings, size, first=first + done, device=device)
        done, now = done + size, time.monotonic()
        if say is not None and (now - reported >= _REPORTED or done == count):
            say(f"data: {name}: {done} of {count} events, {done / max(now - begin, 1e-9):.0f}/s")
            reported = now

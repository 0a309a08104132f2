"""Which checkpoint all ranks go on from, however many there were and are.

A launcher that restarts its ranks (``torchrun --max-restarts``) gives them the words they had. So
a run that an earlier life of the same launch has begun goes on by itself. Ranks look together,
before any of them opens the run: one that was killed amid a save must not send them to different
steps, and neither may a file that only one of them can read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..checkpoint.record import LAST
from ..checkpoint.search import Resume
from ..checkpoint.store import FOLDER, CheckpointStore, Entry
from ..config import Settings
from ..errors import CheckpointError
from ..watching.recorded_run import former_life
from . import distributed
from .device import Place

Step = tuple[int, int]
"""A step, and how many ranks saved it."""


def going_on(
    resume: Resume,
    settings: Settings,
    name: str | None,
    place: Place,
    say: Callable[[str], None],
) -> Resume:
    """What ``watch(resume=...)`` is to be given, the same step on every rank.

    Args:
        resume: what was asked for.
        settings: of the run, with its folder where one was named.
        name: of the run, which names its folder otherwise.
        place: this rank.
        say: told of checkpoints that are passed over, and that a run goes on.
    """
    earlier = distributed.everyone(former_life(settings, name), place)[0] if not resume else None
    if earlier is not None:
        resume = "auto"
        say(f"{earlier} was begun by an earlier life of this launch: going on")
    if not resume or place.world == 1:
        return resume
    folder = _folder(resume, settings, earlier)
    if folder is None:
        return resume  # one file, or an error that watch knows the words for
    found = common_checkpoint(folder, place, say)
    if found is not None:
        return found
    if resume == "auto":
        return "anew"
    raise CheckpointError(
        f"there is no good checkpoint that all ranks have, in {folder}; "
        f"see what there is: holdfast checkpoint ls {folder}, or start anew with --resume auto"
    )


def common_checkpoint(folder: Path, place: Place, say: Callable[[str], None]) -> Path | None:
    """This rank's part of the newest checkpoint that is whole, None where there is none.

    Where more ranks go on than saved it, the others take that of the first.
    """
    own = _saved(folder)
    seen = distributed.everyone({step: sorted(ranks) for step, ranks in own.items()}, place)
    there: dict[Step, set[int]] = {}
    for one in seen:
        for step, ranks in one.items():
            there.setdefault(step, set()).update(ranks)
    for step in sorted(there, reverse=True):
        if there[step] != set(range(step[1])):
            continue  # not every rank came to save it
        ranks = own.get(step, {})
        entry = ranks.get(place.rank) or ranks.get(0)
        damage = "is not here" if entry is None else entry.checked().damage
        trouble = [
            f"rank {r}: {why}" for r, why in enumerate(distributed.everyone(damage, place)) if why
        ]
        if entry is not None and not trouble:
            return entry.path
        say(f"checkpoint of step {step[0]} is damaged ({trouble[0]}); looking for an older one")
    return None


def _saved(folder: Path) -> dict[Step, dict[int, Entry]]:
    """What lies there and may be gone on from, by step and rank; the data is not read."""
    found: dict[Step, dict[int, Entry]] = {}
    for entry in CheckpointStore(folder).entries():
        if entry.good and entry.record.get("kind") != LAST:
            # A folder of shards is of all ranks.
            ranks = range(entry.world) if "files" in entry.record else (entry.rank,)
            found.setdefault((entry.step, entry.world), {}).update(dict.fromkeys(ranks, entry))
    return found


def _folder(resume: Resume, settings: Settings, earlier: Path | None) -> Path | None:
    """Where the checkpoints are; None where one of them was named."""
    if isinstance(resume, bool) or resume == "auto":
        run = settings.run.dir if earlier is None else earlier
        given = settings.checkpoint.dir or (run and os.path.join(run, FOLDER))
        return Path(given) if given else None
    path = Path(resume or "")
    if not path.is_dir():
        return None
    return path / FOLDER if (path / FOLDER).is_dir() else path

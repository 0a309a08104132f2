"""Events per second: of a model forward, of a training step, and of reading files."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from holdfast.training import Place, Task, largest_batch

from ..data.synth_files import write_events
from ..predictions.file_predictions import open_files
from ..run_settings import AnyRun, RegressorRun

_LEAST = 512  # events of the file that is read


def bench(
    kind: str,
    settings: AnyRun,
    *,
    steps: int,
    device: str,
    files: str | None,
    find_batch: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure one model.

    Args:
        kind: which model.
        settings: of a run; its batch and precision count.
        steps: that are timed, after two others.
        device: where the model is.
        files: events to read.
        find_batch: also search for the largest batch that fits.
        say: told what is done.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = Place(torch.device(device))
    with _files(settings, files, say) as path, contextlib.redirect_stdout(sys.stderr):
        truths = tuple(settings.tasks.active()) if isinstance(settings, RegressorRun) else ()
        events = open_files(settings, settings.data, path, truths)
        task = _task(settings, events, place)
        size = min(settings.train.data.batch, len(events))
        taken: Any = events.__getitems__(range(size)).batch
        batch = {name: value.to(place.device) for name, value in taken.items()}
        model = task.model.to(place.device)
        found: dict[str, Any] = {"kind": kind, "device": device, "batch": size,
            "parameters": sum(one.numel() for one in model.parameters())}  # fmt: skip
        half = torch.autocast("cuda", torch.bfloat16, enabled=_half(settings, place))

        def forward() -> None:
            with torch.no_grad(), half:
                assert task.predict is not None
                task.predict(model, batch)

        wanted = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(wanted, lr=1e-6, fused=place.device.type == "cuda")

        def step() -> None:
            optimizer.zero_grad()
            with half:
                loss = task.loss(model, batch)
            (loss[0] if isinstance(loss, tuple) else loss).backward()
            optimizer.step()

        model.eval()
        found["forward events/s"] = size / _seconds(forward, steps, place.device)
        model.train()
        found["training events/s"] = size / _seconds(step, steps, place.device)
        found["reading events/s"] = _reading_rate(events, size)
        if place.device.type == "cuda":
            found["peak memory GB"] = torch.cuda.max_memory_allocated(place.device) / 1e9
        if find_batch:
            best = largest_batch(task, settings.train, place, say, limit=1 << 16)
            found |= {"largest batch": best.batch, "fastest batch": best.fastest, "why": best.why}
    return found


@contextlib.contextmanager
def _files(settings: AnyRun, files: str | None, say: Callable[[str], None]) -> Iterator[str]:
    if files is not None:
        yield files
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.root"
        count = max(settings.train.data.batch, _LEAST)
        say(f"generating {count} events")
        write_events(path, settings.data.synth, count)
        yield str(path)


def _task(settings: AnyRun, events: Any, place: Place) -> Task:
    from ..recipes import reconstruction_task, regression_task  # late: they import this room

    if isinstance(settings, RegressorRun):
        return regression_task(settings, place, events, None)
    return reconstruction_task(settings, place, events, None)


def _reading_rate(events: Any, size: int) -> float:
    """How many events per second come from the files in one process."""
    began = time.perf_counter()
    for first in range(0, len(events), size):
        events.__getitems__(range(first, min(first + size, len(events))))
    return len(events) / (time.perf_counter() - began)


def _half(settings: AnyRun, place: Place) -> bool:
    named = settings.train.precision
    return place.device.type == "cuda" and named in ("auto", "bf16")


def _seconds(act: Callable[[], None], steps: int, device: torch.device) -> float:
    """Of one call."""
    for _ in range(2):
        act()
    _wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        act()
    _wait(device)
    return (time.perf_counter() - began) / steps


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

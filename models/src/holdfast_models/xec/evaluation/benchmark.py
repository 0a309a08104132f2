"""Events per second: of a model forward, of whole training steps, and of reading files.

A training step is what a run does: masks, loss, backward, clipping, optimizer, with the guard
around it and compiled as the settings say. Beside it stands the plain reference, without kernels
and compiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from holdfast import watch
from holdfast.training import Place, Streamed, Task, largest_batch

from ...step_times import STEPS, roofline, step_times
from ..data.event_files import EventFile
from ..data.synth_files import write_events
from ..predictions.file_predictions import open_files
from ..recipes import task_of
from ..run_settings import AnyRun, RegressorRun

_LEAST = 512  # events of the file that is read


class Steps:
    """Training steps, all on one batch.

    Args:
        settings: of the run; precision, compiler and clip count.
        task: its model and loss.
        batch: where the model is.
        compiled: a mode of the compiler, or none.
        loss: compile the loss with the model.
    """

    def __init__(
        self,
        settings: AnyRun,
        task: Task,
        batch: dict[str, Tensor],
        compiled: str,
        *,
        loss: bool = False,
    ) -> None:
        self._device = next(iter(batch.values())).device
        self.model, self._task, self._batch = task.model.to(self._device).train(), task, batch
        self._loss: Any = task.loss
        self._clip = settings.train.clip
        self.half = self._device.type == "cuda" and settings.train.precision in ("auto", "bf16")
        wanted = [one for one in self.model.parameters() if one.requires_grad]
        self._wanted = wanted
        self.optimizer = torch.optim.AdamW(wanted, lr=1e-6, fused=self._device.type == "cuda")
        if compiled != "none" and loss:
            with torch.no_grad():  # what it remembers of its first batch would be compiled twice
                task.loss(self.model, batch)
            self._loss = torch.compile(task.loss, mode=compiled, dynamic=False)
        elif compiled != "none":
            self.model.compile(mode=compiled, dynamic=False)
        self._guard: Any = None

    def step(self) -> None:
        """One of them."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self.half):
            loss = self._loss(self.model, self._batch)
        loss = loss[0] if isinstance(loss, tuple) else loss
        if self._guard is None:
            loss.backward()
        else:
            self._guard.backward(loss)
        if self._clip:
            nn.utils.clip_grad_norm_(self._wanted, self._clip, foreach=True)
        if self._guard is None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            self._guard.step()

    def forward(self) -> None:
        """A prediction."""
        assert self._task.predict is not None
        half = torch.autocast(self._device.type, torch.bfloat16, enabled=self.half)
        with torch.no_grad(), half:
            self._task.predict(self.model, self._batch)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """With the guard around the steps, as a run has it."""
        with tempfile.TemporaryDirectory() as folder:
            run = f"{folder}/run"
            self._guard = watch(self.model, self.optimizer, run_dir=run, say=lambda line: None)
            try:
                yield
            finally:
                self._guard.close()
                self._guard = None


def bench(
    settings: AnyRun,
    *,
    steps: int | None,
    device: str,
    files: str | None,
    find_batch: bool,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure one model.

    Args:
        settings: of a run; its batch, precision and compiler count.
        steps: that are timed, after three others; None: 200, on a CPU 10.
        device: where the model is.
        files: events to read.
        find_batch: also search for the largest batch that fits.
        say: told what is done.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    place = Place(torch.device(device))
    steps = steps or STEPS[place.device.type]
    truths = tuple(settings.tasks.active()) if isinstance(settings, RegressorRun) else ()
    with _files(settings, files, say) as path, contextlib.redirect_stdout(sys.stderr):
        events = open_files(settings, settings.data, path, truths)
        first, read = reading(events, settings.train.data.batch)
        batch = {name: value.to(place.device) for name, value in first.items()}
        size, compiled = len(batch["run"]), settings.train.compile.name
        task = task_of(settings, place, events, None)
        flops = _flops(task, batch)
        work = Steps(settings, task, batch, compiled)
        task.model.eval()
        forward = step_times(work.forward, place.device, steps=steps)
        task.model.train()
        bare = step_times(work.step, place.device, steps=steps)
        with work.guarded():
            whole = step_times(work.step, place.device, steps=steps)
        # The plain reference neither compiles nor has kernels.
        model = dataclasses.replace(settings.model, blocks="plain")
        plain = dataclasses.replace(settings, model=model)
        slow = Steps(plain, task_of(plain, place, events, None), batch, "none")
        with slow.guarded():
            reference = step_times(slow.step, place.device, steps=steps)
        dtype = torch.bfloat16 if work.half else torch.float32
        found: dict[str, Any] = {
            "kind": settings.kind,
            "device": device,
            "batch": size,
            "compile": compiled,
            "parameters": sum(one.numel() for one in task.model.parameters()),
            "forward events/s": 1000 * size / forward.median,
            **whole.reported(size, "events", bare),
            **roofline(flops * size, whole.median, place.device, dtype),
            "against plain": reference.median / whole.median,
            **read,
        }
        if find_batch:
            best = largest_batch(task, settings.train, place, say, limit=1 << 16)
            found |= {"largest batch": best.batch, "fastest batch": best.fastest, "why": best.why}
    return found


def reading(events: Streamed, batch: int) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The first batch of files, and what loading all of them takes one process, part by part.

    As training does it, in chunks that are cut into batches; without the steps between.
    """
    files = cast("list[EventFile]", events.shards)
    before = {what: sum(file.seconds[what] for file in files) for what in ("read", "transform")}
    place = Place(torch.device("cpu"))
    began, first, count = time.perf_counter(), None, 0
    for some in events.joined(place, batch, seed=0, train=False).in_batches(drop_last=False):
        first, count = first or some.batch, count + len(some)
    whole = time.perf_counter() - began
    spent = {what: sum(file.seconds[what] for file in files) - before[what] for what in before}
    assert first is not None, "files without events are refused when they are opened"
    return first, {
        "reading events/s": count / whole,
        "s to read": spent["read"],
        "s to normalise": spent["transform"],  # 0 where the device does it
        "s to batch": whole - sum(spent.values()),
    }


def _flops(task: Task, batch: dict[str, Tensor]) -> float:
    """Of products and convolutions, forward and for one event; counted in the plain form."""
    one = {name: value[:1].cpu() for name, value in batch.items()}
    assert task.predict is not None
    with FlopCounterMode(display=False) as counted, torch.no_grad():
        task.predict(task.model.eval(), one)
    return float(counted.get_total_flops())


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

"""How fast a run of some settings is: forward pass, training step, memory.

The model, the loss and the first batches are those that ``holdfast train`` would have, text bridge
and early stop included where they are on. Shapes: B batch, E teacher width.
"""

from __future__ import annotations

import contextlib
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from holdfast import watch
from holdfast.training import Place

from ..model.energy_flow import EnergyFlow, Output
from ..modes.entry import why_not_fused
from ..recipe import build
from ..run_settings import EnergyFlowSettings

__all__ = ["Precision", "Work", "bench", "bench_lines", "busy_ms", "measured"]

Precision = Literal["auto", "fp32", "bf16"]
_QUIET = 1  # the rank of one who prints nothing
_HEADS = 0.05  # of the heads' last weights: zeros would be easier to multiply than what is trained


class Work:
    """A run as it is set, but with one batch again and again; ``train`` is an optimizer step.

    Args:
        settings: of the run.
        device: where.
        precision: auto: bf16 on a GPU, fp32 elsewhere.
    """

    def __init__(
        self, settings: EnergyFlowSettings, device: torch.device, precision: Precision = "auto"
    ) -> None:
        self.settings, self.device = settings, device
        self.batch, self.window = settings.train.data.batch, settings.train.accumulate
        self.half = precision == "bf16" or (precision == "auto" and device.type == "cuda")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.train.seed.seed)
            task = build(settings, Place(device, rank=_QUIET))
            assert isinstance(task.model, EnergyFlow)
            self.model, self._loss = task.model, task.loss
            if self.model.core is not None:
                carrier = self.model.core.carrier
                for end in (carrier.energy_end, carrier.move_end):
                    torch.nn.init.normal_(end.weight, 0, _HEADS)
        self.model.to(device)
        pairs: Any = task.train
        first = [number % len(pairs) for number in range(self.batch)]
        self._batch = tuple(part.to(device) for part in pairs.__getitems__(first).batch)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.train.optimizer.lr,
            weight_decay=settings.train.optimizer.weight_decay,
            fused=device.type == "cuda",
        )
        self._stepped = task.stepped
        self._watch: Any = None

    def forward(self, step: int) -> Output:
        """A forward pass without gradients."""
        with torch.no_grad(), self._autocast():
            return self.model(self._batch[0], step=step)

    def train(self, step: int) -> Tensor:
        """Forward, loss, backward of every micro-batch, clipping, optimizer; the last loss."""
        guard, clip = self._watch, self.settings.train.clip
        loss = torch.zeros(())
        for _ in range(self.window):
            with self._autocast():
                loss = self._loss(self.model, self._batch)[0] / self.window
            if guard is None:
                loss.backward()
            else:
                guard.backward(loss)
        if clip is not None:
            clip_grad_norm_(self.model.parameters(), clip)
        if guard is None:
            self.optimizer.step()
            self.optimizer.zero_grad()
        else:
            guard.step()
        if self._stepped is not None:
            self._stepped(step + 1)
        return loss.detach()

    @contextlib.contextmanager
    def guarded(self, on: bool = True) -> Iterator[None]:
        """With holdfast's guard around the loop, as a user has it."""
        if not on:
            yield
            return
        with tempfile.TemporaryDirectory() as folder:
            self._watch = watch(
                self.model, self.optimizer, run_dir=f"{folder}/run", say=lambda line: None
            )
            try:
                yield
            finally:
                self._watch.close()
                self._watch = None

    def mode(self) -> str:
        """How the core computes a training step, and why not by a graph where it does not."""
        core = self.model.core
        if core is None:
            return "no core"
        surface_BHW = torch.empty(self.batch, *self.model.input.shape, device=self.device)
        with self._autocast():
            mode = core.mode_for(surface_BHW)
            why = why_not_fused(core.parts, surface_BHW)
        if mode == "fused":
            return f"{mode}, {'graph' if core.graphs.reason is None else core.graphs.reason}"
        return f"{mode}, fused" if mode == "chunked" and why is None else mode

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)


def bench(
    settings: EnergyFlowSettings,
    device: torch.device,
    *,
    steps: int = 50,
    warmup: int = 5,
    precision: Precision = "auto",
    guard: bool = False,
) -> dict[str, Any]:
    """Time forward passes and training steps; plain data.

    Args:
        settings: of the model, the batch and the optimizer.
        device: where.
        steps: how many of each are timed.
        warmup: how many before that are not.
        precision: auto: bf16 on a GPU, fp32 elsewhere.
        guard: with holdfast's guard around the training steps.
    """
    work = Work(settings, device, precision)
    many = work.batch * work.window
    work.model.eval()
    ended = work.forward(0).flows
    forward_part = measured(work.forward, device, work.batch, steps=steps, warmup=warmup)
    work.model.train()
    with work.guarded(guard):
        train_part = measured(work.train, device, many, steps=steps, warmup=warmup)
    lattice = settings.model.lattice
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": "bf16" if work.half else "fp32",
        "mode": work.mode(),
        "guard": guard,
        "lattice": [lattice.width, lattice.height, lattice.depth],
        "hidden": settings.model.carrier.hidden,
        "layers": settings.model.carrier.layers,
        "batch": work.batch,
        "accumulate": work.window,
        "text_bridge": work.model.bridge is not None,
        "lattice_steps": settings.model.steps,
        "flows": 0 if ended is None else int(ended.stats.made),
        "rows": 0 if ended is None else len(ended.e_N1),
        "parameters": sum(one.numel() for one in work.model.parameters()),
        "forward": forward_part,
        "train": train_part,
    }


def bench_lines(found: dict[str, Any]) -> list[str]:
    """What ``bench`` found, for people."""
    sides = " x ".join(map(str, found["lattice"]))
    bridge = "with" if found["text_bridge"] else "without"
    lines = [
        f"lattice {sides}, {found['hidden']} wide, {found['layers']} layers, batch "
        f"{found['batch']} x {found['accumulate']}: {found['flows']} flows in {found['rows']} "
        f"rows, {found['lattice_steps']} steps, {bridge} text bridge",
        f"{found['parameters']:,} parameters, {found['mode']}, {found['precision']}, "
        f"{found['device']}, torch {found['torch']}{', guarded' if found['guard'] else ''}",
        "",
        f"{'':<10}{'samples/s':>11}{'median ms':>11}{'fastest':>11}{'slowest':>11}{'peak GB':>11}",
    ]
    for name in ("forward", "train"):
        part = found[name]
        series = part["milliseconds"]
        lines.append(
            f"{name:<10}{part['samples_per_second']:11.1f}{statistics.median(series):11.2f}"
            f"{min(series):11.2f}{max(series):11.2f}{part['peak_gb']:11.2f}"
        )
    return lines


def measured(
    work: Callable[[int], object],
    device: torch.device,
    batch: int,
    *,
    steps: int,
    warmup: int,
    first: int = 0,
) -> dict[str, Any]:
    """Times of single steps, and what they come to.

    Args:
        work: one step, given its number.
        device: where it runs.
        batch: samples of a step.
        steps: that are timed.
        warmup: that are not.
        first: number of the first step.
    """
    for step in range(first, first + warmup):
        work(step)
    series = (_gpu_times if device.type == "cuda" else _cpu_times)(
        work, device, first + warmup, steps
    )
    return {
        "samples_per_second": 1000 * batch * steps / sum(series),
        "median_ms": statistics.median(series),
        "milliseconds": [round(one, 4) for one in series],
        "peak_gb": _peak_gb(device),
    }


def busy_ms(work: Callable[[int], object], first: int, steps: int = 5) -> float:
    """Time of a step in which the GPU computes: the sum of its kernels and copies."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for step in range(first, first + steps):
            work(step)
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    spans = [one.time_range.elapsed_us() for one in found.events() or () if one.device_type == cuda]
    return sum(spans) / 1000 / steps


def _cpu_times(
    work: Callable[[int], object], device: torch.device, first: int, steps: int
) -> list[float]:
    series: list[float] = []
    for step in range(first, first + steps):
        began = time.perf_counter()
        work(step)
        series.append(1000 * (time.perf_counter() - began))
    return series


def _gpu_times(
    work: Callable[[int], object], device: torch.device, first: int, steps: int
) -> list[float]:
    """Read after the last step: waiting for each would hide how the host keeps up."""
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.cuda.device(device):
        marks[0].record()
        for number in range(steps):
            work(first + number)
            marks[number + 1].record()
        torch.cuda.synchronize(device)
    return [a.elapsed_time(b) for a, b in pairwise(marks)]


def _peak_gb(device: torch.device) -> float:
    """Of the GPU since the warm-up; of the whole process, since its start, on a CPU.

    What is set aside, because the memory of a captured graph does not count as allocated.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

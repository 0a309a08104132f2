"""What a training step takes: time, memory, launches, and the share in which a GPU computes."""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
from collections.abc import Callable
from itertools import pairwise

import torch

__all__ = ["StepTimes", "product_rate", "step_times"]

_PROFILED = 3  # steps whose kernels are counted
_SIDE = {"cuda": 8192, "cpu": 1024}  # of the matrices whose product tells what a device can do


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Steps of one kind."""

    milliseconds: list[float]
    peak_gb: float
    """Of the GPU since the warm-up; of the whole process, since its start, on a CPU."""
    busy: float | None = None
    """Share of its time in which a GPU computes."""
    launches: int | None = None
    """Kernels and copies of a step."""

    @property
    def median(self) -> float:
        """Milliseconds of a usual step."""
        return statistics.median(self.milliseconds)

    @property
    def unsteady(self) -> float:
        """By how much the slowest step is slower than a usual one, as a share of it."""
        return max(self.milliseconds) / self.median - 1


def step_times(
    step: Callable[[], object], device: torch.device, *, steps: int, warmup: int = 3
) -> StepTimes:
    """Time single steps.

    Args:
        step: one of them.
        device: where it runs.
        steps: that are timed.
        warmup: that are not; the first of them compiles.
    """
    for _ in range(warmup):
        step()
    if device.type != "cuda":
        series: list[float] = []
        for _ in range(steps):
            began = time.perf_counter()
            step()
            series.append(1000 * (time.perf_counter() - began))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return StepTimes(milliseconds=series, peak_gb=peak)
    # Read after the last step: waiting for each would hide how the host keeps up.
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(steps + 1)]
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    with torch.cuda.device(device):
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        torch.cuda.synchronize(device)
    series = [a.elapsed_time(b) for a, b in pairwise(marks)]
    peak = torch.cuda.max_memory_allocated(device) / 1e9
    busy, launches = _kernels(step)
    usual = statistics.median(series)
    return StepTimes(
        milliseconds=series, peak_gb=peak, busy=min(1.0, busy / usual), launches=launches
    )


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product: what this device can reach."""
    side = _SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    found = step_times(lambda: a @ b, device, steps=5)
    return 2 * side**3 / (found.median / 1000)


def _kernels(step: Callable[[], object]) -> tuple[float, int]:
    """Milliseconds of kernels and copies of a step, and how many there are."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(_PROFILED):
            step()
        torch.cuda.synchronize()
    cuda = torch.autograd.DeviceType.CUDA
    spans = [one.time_range.elapsed_us() for one in found.events() or () if one.device_type == cuda]
    return sum(spans) / 1000 / _PROFILED, round(len(spans) / _PROFILED)

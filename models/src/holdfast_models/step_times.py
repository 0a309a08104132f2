"""What a training step takes: time, memory, launches, waits, and the share in which a GPU computes.

    watch = StepWatch(device, warm=10, steps=200)
    task.stepped = watch.around(task.stepped)      # in a run of the trainer
    watch.times.told(samples, "events", bare)      # what every bench prints

``step_times`` does the same with a step of one's own.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, cast

import torch
from torch.autograd import DeviceType

__all__ = ["STEPS", "StepWatch", "TimedSteps", "roofline", "step_times"]

_FORWARD_AND_BACKWARD = 3  # times the products of a forward pass

STEPS = {"cuda": 200, "cpu": 10}
"""Default number of timed steps: a leak shows over hundreds of steps, and a CPU is slow."""

_NEAR = 0.1  # of the median: steps that far away from it are counted
_AWAITED = 10  # steps in which the host may not wait for the device
_PROFILED = 5  # steps whose kernels are counted
_LONGEST = 8  # kernels, and steps, that are named
_SIDE = {"cuda": 8192, "cpu": 1024}  # of the matrices whose product tells what a device can do
_OWN = 2  # waits of a profiled run: ours behind its last step, and that of the profiler's end
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedSteps:
    """Steps of one kind."""

    milliseconds: list[float]
    peak_gb: float
    """Of the GPU since the warm-up; of the whole process, since its start, on a CPU."""
    device: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """What a GPU did meanwhile, by name; empty on a CPU."""
    first: int = 1
    """Number of the first step that was timed."""

    @property
    def median(self) -> float:
        """Milliseconds of a usual step."""
        return statistics.median(self.milliseconds)

    @property
    def mean(self) -> float:
        """Milliseconds of a step, slow ones included."""
        return statistics.fmean(self.milliseconds)

    @property
    def near(self) -> float:
        """Share of the steps within 10 % of the median."""
        usual = self.median
        return statistics.fmean(abs(one / usual - 1) <= _NEAR for one in self.milliseconds)

    @property
    def long(self) -> dict[int, float]:
        """The longest of those that are more than 10 % longer, by number."""
        each, most = self.milliseconds, (1 + _NEAR) * self.median
        order = sorted(range(len(each)), key=lambda one: -each[one])[:_LONGEST]
        return {self.first + one: round(each[one], 1) for one in sorted(order) if each[one] > most}

    @property
    def last_long(self) -> int | None:
        """Number of the last step that was more than 10 % longer; from there on all are alike."""
        most = (1 + _NEAR) * self.median
        numbers = [self.first + n for n, one in enumerate(self.milliseconds) if one > most]
        return max(numbers, default=None)

    def reported(self, samples: int, unit: str, bare: TimedSteps | None = None) -> dict[str, Any]:
        """What a bench prints of them.

        Args:
            samples: of a step.
            unit: what they are called.
            bare: the same steps without the guard.
        """
        if not self.milliseconds:
            return {f"{unit}/s": None, **self.device}
        found: dict[str, Any] = {
            f"{unit}/s": 1000 * samples / self.mean,
            f"{unit}/s of a usual step": 1000 * samples / self.median,
            "ms a step, median": self.median,
            f"% of {len(self.milliseconds)} steps within 10 %": 100 * self.near,
            "long steps, ms": self.long,
            "last long step": self.last_long,
            "GB at most": self.peak_gb,
            **self.device,
        }
        if bare is not None:
            found |= {
                "guard cost µs": 1000 * (self.median - bare.median),
                "guard cost %": 100 * (self.median / bare.median - 1),
            }
        return found


class StepWatch:
    """Looks at a loop from between its steps: some warm up, some are timed.

    On a GPU the next ones are watched for waits of the host, and the last are profiled: either
    would change the times.

    Args:
        device: where the steps run.
        warm: steps before; the first of them compiles.
        steps: that are timed.
        profiles: whether some are profiled, which takes a while where operations are many.
    """

    def __init__(
        self, device: torch.device, *, warm: int, steps: int, profiles: bool = True
    ) -> None:
        self._device, self._on_gpu = device, device.type == "cuda"
        self._warm, self._end = warm, warm + steps
        self._profiles = profiles and self._on_gpu
        self.last = self._end + _AWAITED * self._on_gpu + _PROFILED * self._profiles
        """The number of the last step that is looked at."""
        self._marks: list[Any] = []
        self._found: dict[str, Any] = {}
        self._peak = 0.0
        self._busy: float | None = None
        self._held = (0, 0)
        self._waits = _Waits()
        self._profile: Any = None

    def around(
        self, stepped: Callable[[int], bool | None] | None = None
    ) -> Callable[[int], bool | None]:
        """``stepped`` of a task, and a look behind it."""

        def both(step: int) -> bool | None:
            again = stepped(step) if stepped is not None else None
            self.look(step)
            return again

        return both

    @property
    def times(self) -> TimedSteps:
        """What was seen, once the loop is over; of fewer steps where it ended early."""
        self._waits.stop()
        if self._marks and self._on_gpu:
            torch.cuda.synchronize(self._device)
        each = [_apart(a, b) for a, b in pairwise(self._marks)]
        found = dict(self._found)
        if self._busy is not None:
            found["busy %"] = min(100.0, 100 * self._busy / statistics.median(each))
        return TimedSteps(milliseconds=each, peak_gb=self._peak, device=found, first=self._warm + 1)

    def look(self, step: int) -> None:
        """Step number ``step`` is over; 0: none is yet."""
        if step == self._warm and self._on_gpu:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._held = _memory(self._device)
        if self._warm <= step <= self._end:
            self._marks.append(_mark(self._on_gpu))
        if step == self._end:
            self._timed()
        if not self._on_gpu:
            return
        if step == self._end:
            self._waits.start()
        if step == self._end + _AWAITED:
            self._found |= self._waits.stop()
        if step == self._end + _AWAITED and self._profiles:
            self._profile = torch.profiler.profile(acc_events=True)
            self._profile.__enter__()
        if step == self.last and self._profiles:
            torch.cuda.synchronize(self._device)
            self._profile.__exit__(None, None, None)
            self._profiled(self._profile.events() or ())

    def _timed(self) -> None:
        if not self._on_gpu:
            self._peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
            return
        torch.cuda.synchronize(self._device)
        self._peak = torch.cuda.max_memory_allocated(self._device) / 1e9
        grown = [now - then for now, then in zip(_memory(self._device), self._held, strict=True)]
        # Reserved too: what a graph works in is not allocated in the eyes of torch.
        self._found |= {
            "GB reserved": torch.cuda.max_memory_reserved(self._device) / 1e9,
            f"MB grown in {self._end - self._warm} steps": grown[0] / 1e6,
            "MB grown, reserved": grown[1] / 1e6,
        }

    def _profiled(self, events: Any) -> None:
        names = Counter(one.name for one in events if one.device_type == DeviceType.CPU)
        names["cudaDeviceSynchronize"] -= _OWN
        # Named ranges of the host lie on the line of the device, too.
        kernels = [
            one for one in events
            if one.device_type == DeviceType.CUDA and not getattr(one, "is_user_annotation", False)
        ]  # fmt: skip
        took = Counter[str]()
        for one in kernels:
            took[one.name] += one.time_range.elapsed_us()
        launches = sum(count for name, count in names.items() if _launches(name))
        self._busy = took.total() / 1000 / _PROFILED
        self._found |= {
            "launches a step": launches / _PROFILED,
            "kernels a step": len(kernels) / _PROFILED,
            f"waits in {_PROFILED} profiled steps": {
                name: names[name] for name in _WAITS if names[name] > 0
            },
            "longest kernels, ms": {
                name[:60]: us / 1000 / _PROFILED for name, us in took.most_common(_LONGEST)
            },
        }


class _Waits:
    """Where the host waits for the device, as torch warns about it."""

    def __init__(self) -> None:
        self._found = Counter[str]()
        self._shown: Callable[..., Any] | None = None
        self._filters: list[Any] = []

    def start(self) -> None:
        """From here on."""
        self._filters, self._shown = list(warnings.filters), warnings.showwarning
        warnings.simplefilter("always")
        warnings.showwarning = self._show
        torch.cuda.set_sync_debug_mode("warn")

    def stop(self) -> dict[str, Any]:
        """How many there were, and the lines that they came from."""
        if self._shown is None:
            return {}
        torch.cuda.set_sync_debug_mode("default")
        warnings.showwarning, self._shown = self._shown, None
        cast("list[Any]", warnings.filters)[:] = self._filters
        found: dict[str, Any] = {f"host syncs in {_AWAITED} steps": self._found.total()}
        if self._found:
            found["their lines"] = dict(self._found.most_common(_LONGEST))
        return found

    def _show(self, message: Any, *given: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" not in str(message):
            return
        frames = [one for one in traceback.extract_stack()[:-1] if "holdfast" in one.filename]
        lines = [f"{one.filename.rsplit('/', 1)[-1]}:{one.lineno}" for one in frames[-3:]]
        self._found[" < ".join(reversed(lines)) or "elsewhere"] += 1


def step_times(
    step: Callable[[], object], device: torch.device, *, steps: int, warmup: int = 3
) -> TimedSteps:
    """Time single steps.

    Args:
        step: one of them.
        device: where it runs.
        steps: that are timed.
        warmup: that are not; the first of them compiles.
    """
    watch = StepWatch(device, warm=warmup, steps=steps)
    watch.look(0)
    for number in range(1, watch.last + 1):
        step()
        watch.look(number)
    return watch.times


def roofline(
    flops: float, milliseconds: float, device: torch.device, dtype: torch.dtype
) -> dict[str, float]:
    """Matrix products of a training step beside the rate of a large product on this device.

    Args:
        flops: floating-point operations of the forward pass.
        milliseconds: of the whole step.
        device: that it runs on.
        dtype: of its products.
    """
    reached = _FORWARD_AND_BACKWARD * flops / milliseconds * 1000
    return {
        "TFLOP/s of products": reached / 1e12,
        "share of a large product %": 100 * reached / _product_rate(device, dtype),
    }


def _product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of a large matrix product: what this device can reach."""
    side = _SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    found = step_times(lambda: a @ b, device, steps=5)
    return 2 * side**3 / (found.median / 1000)


def _memory(device: torch.device) -> tuple[int, int]:
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)


def _mark(on_gpu: bool) -> Any:
    """Now, on the clock of the device where there is one: the host runs ahead of it."""
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _apart(begin: Any, end: Any) -> float:
    """Milliseconds between two marks."""
    return 1000 * (end - begin) if isinstance(begin, float) else begin.elapsed_time(end)


def _launches(name: str) -> bool:
    of_cuda = name.startswith(("cuda", "cu"))
    return of_cuda and ("Launch" in name or name.startswith(("cudaMemcpyAsync", "cudaMemsetAsync")))

"""What the steps of a training run take: time, memory, launches, and waits of the host.

Some steps are timed; on a GPU the next ones are watched for waits, and the last are profiled.
"""

from __future__ import annotations

import statistics
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.autograd import DeviceType

__all__ = ["StepWatch"]

_WATCHED = 10  # steps in which every wait of the host is asked where it comes from
_PROFILED = 5  # steps in which launches are counted
_LONGEST = 8  # kernels, and steps, that are named
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_OWN = 2  # waits of a profiled run: ours behind its last step, and that of the profiler's end


class StepWatch:
    """Looks on behind every step.

    Args:
        device: where training runs.
        warm: steps before the first that is timed.
        steps: that are timed.
    """

    def __init__(self, device: torch.device, warm: int, steps: int) -> None:
        self._device, self._warm, self._steps = device, warm, steps
        self._on_gpu = device.type == "cuda"
        self.last = warm + steps + (_WATCHED + _PROFILED if self._on_gpu else 0)
        self.seconds: float | None = None
        """Of a timed step, their mean; None where no two of them ended."""
        self.found: dict[str, Any] = {}
        self._ends: list[Any] = []
        self._began = 0.0
        self._held = self._used = 0
        self._waits = _Waits()
        self._profile: Any = None

    def around(self, stepped: Callable[[int], bool | None] | None) -> Callable[[int], bool | None]:
        """``stepped`` of the task, and a look at the clock behind it."""

        def both(step: int) -> bool | None:
            again = stepped(step) if stepped is not None else None
            self._look(step)
            return again

        return both

    def end(self) -> None:
        """The run is over, perhaps before its last step: what there is counts."""
        if self.seconds is None and len(self._ends) > 1:
            self._timed()
        self._waits.stop()

    def _look(self, step: int) -> None:
        timed = self._warm + self._steps
        if self._warm <= step <= timed:
            self._ends.append(_mark(self._on_gpu))
        if step == self._warm:
            self._begin()
        if step == timed:
            self._timed()
        if not self._on_gpu:
            return
        if step == timed:
            self._waits.start()
        if step == timed + _WATCHED:
            self.found |= self._waits.stop()
            self._profile = torch.profiler.profile()
            self._profile.__enter__()
        if step == self.last:
            torch.cuda.synchronize(self._device)
            self._profile.__exit__(None, None, None)
            self._profiled(self._profile.events())

    def _begin(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._held, self._used = torch.cuda.memory_reserved(self._device), self._in_use()
        self._began = time.perf_counter()

    def _timed(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)
        count = len(self._ends) - 1
        self.seconds = (time.perf_counter() - self._began) / count
        each = [_apart(a, b) for a, b in pairwise(self._ends)]
        median = statistics.median(each)
        order = sorted(range(count), key=lambda one: -each[one])
        long = [one for one in order[:_LONGEST] if each[one] > 1.1 * median]
        self.found |= {
            "steps": count,
            "ms a step": 1000 * self.seconds,
            "ms a step, median": median,
            "within 10 % of it": sum(abs(x / median - 1) < 0.1 for x in each) / count,
            "long steps, ms": {self._warm + 1 + one: round(each[one], 1) for one in sorted(long)},
        }
        if self._on_gpu:
            # Reserved: what a graph works in is not allocated in the eyes of torch.
            held, used = torch.cuda.memory_reserved(self._device), self._in_use()
            self.found |= {
                "GB reserved": torch.cuda.max_memory_reserved(self._device) / 1e9,
                "GB in use on the device": used / 1e9,
                "MB grown, reserved": (held - self._held) / 1e6,
                "MB grown, on the device": (used - self._used) / 1e6,
            }

    def _in_use(self) -> int:
        """Bytes, of all who use the device."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

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
        assert self.seconds is not None
        launches = sum(count for name, count in names.items() if _launches(name))
        self.found |= {
            "busy share": took.total() / 1e6 / _PROFILED / self.seconds,
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
        self._filters, self._shown = warnings.filters[:], warnings.showwarning
        warnings.simplefilter("always")
        warnings.showwarning = self._show
        torch.cuda.set_sync_debug_mode("warn")

    def stop(self) -> dict[str, Any]:
        """How many there were, and the lines that they came from."""
        if self._shown is None:
            return {}
        torch.cuda.set_sync_debug_mode("default")
        warnings.showwarning, self._shown = self._shown, None
        warnings.filters[:] = self._filters
        return {
            f"waits in {_WATCHED} watched steps": self._found.total(),
            "their lines": dict(self._found.most_common(_LONGEST)),
        }

    def _show(self, message: Any, *given: Any, **more: Any) -> None:
        if "synchronizing CUDA operation" not in str(message):
            return
        frames = [one for one in traceback.extract_stack()[:-1] if "holdfast" in one.filename]
        lines = [f"{one.filename.rsplit('/', 1)[-1]}:{one.lineno}" for one in frames[-3:]]
        self._found[" < ".join(reversed(lines)) or "elsewhere"] += 1


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

"""What a run measures of itself beside the loss: pace, memory, how busy the device is.

Read when the numbers of a run are noted, every so many steps. Nothing here waits for the device,
and what cannot be known is skipped.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Mapping

import psutil
import torch
from torch.optim import Optimizer

from ...watching.watch import Watch
from ..device import Place

# Share of the time between two records that measuring may take.
_MOST = 0.05
# Seconds between two questions to the driver how busy a GPU is.
_APART = 1.0


class Measures:
    """The trainer's own numbers; the expensive ones are skipped where measuring takes too long.

    Args:
        place: this rank.
        watch: knows the newest row and the skipped steps.
        optimizer: knows the learning rate.
        say: called once when something is no longer measured.
    """

    def __init__(
        self, place: Place, watch: Watch, optimizer: Optimizer, say: Callable[[str], None]
    ) -> None:
        self._place, self._watch, self._optimizer, self._say = place, watch, optimizer, say
        self._lean = False
        self._busy = place.device.type == "cuda"
        self._asked = -math.inf
        self._utilized: dict[str, float] = {}

    def take(self, *, seconds: float, steps: int, samples: int) -> dict[str, float]:
        """The numbers of an interval.

        Args:
            seconds: of training in it.
            steps: optimizer steps in it.
            samples: that this rank has seen in it.
        """
        everywhere = samples * self._place.world
        numbers = {
            "throughput_samples_per_sec": everywhere / seconds,
            "step_time": seconds / max(steps, 1),
            "effective_batch_size": everywhere / max(steps, 1),
            "learning_rate": float(self._optimizer.param_groups[0]["lr"]),
            "grad_norm": self._watch.latest.get("grad_norm", math.nan),
            "skipped_steps": float(self._watch.skipped),
        }
        if not self._lean:
            numbers |= memory_numbers(self._place.device) | self.utilization()
        return {name: value for name, value in numbers.items() if math.isfinite(value)}

    def cost(self, spent: float, seconds: float) -> None:
        """What taking and writing the numbers took of an interval of so many seconds."""
        if self._lean or spent <= _MOST * seconds:
            return
        self._lean = True
        self._say(
            f"holdfast: measuring took {spent / seconds:.0%} of the time between two records; "
            "memory and utilization are skipped from here on"
        )

    def utilization(self) -> dict[str, float]:
        """How busy the GPU is, as the driver said within the last second."""
        now = time.monotonic()
        if self._busy and now - self._asked >= _APART:
            self._asked = now
            try:
                percent = float(torch.cuda.utilization(self._place.device))
                self._utilized = {"gpu_utilization_percent": percent}
            except Exception:  # no NVML for Python, or a driver that does not know
                self._busy, self._utilized = False, {}
        return self._utilized


def memory_numbers(device: torch.device) -> dict[str, float]:
    """Memory in use: on a GPU by tensors, with their share of what is reserved; else resident."""
    if device.type != "cuda":
        return {"memory_used_gb": resident() / 1e9}
    stats = torch.cuda.memory_stats(device)
    used, held = _allocated(stats), _reserved(stats)
    numbers = {"memory_used_gb": used / 1e9}
    return numbers | ({"memory_utilization_percent": 100 * used / held} if held else {})


def most_memory(device: torch.device) -> tuple[float, float]:
    """Most memory there was so far, of tensors on a GPU, else resident; and resident now. In GB."""
    now = resident()
    if device.type == "cuda":
        most = float(torch.cuda.max_memory_allocated(device))
    else:
        most = max(now, _peak_resident())
    return most / 1e9, now / 1e9


def memory_peak(device: torch.device) -> str:
    """Memory in use and the most there was so far, in words; for the memory channel."""
    if device.type != "cuda":
        now = resident()
        return f"resident {now / 1e9:.3f} GB, peak {max(now, _peak_resident()) / 1e9:.3f} GB"
    stats = torch.cuda.memory_stats(device)
    most = stats.get("allocated_bytes.all.peak", 0)
    return (
        f"allocated {_allocated(stats) / 1e9:.3f} GB, peak {most / 1e9:.3f} GB, "
        f"reserved {_reserved(stats) / 1e9:.3f} GB"
    )


def memory_layout(device: torch.device) -> str:
    """How memory lies, in words; for the profiling channel."""
    if device.type != "cuda":
        return f"resident {resident() / 1e9:.3f} GB"
    stats = torch.cuda.memory_stats(device)
    split = stats.get("inactive_split_bytes.all.current", 0)
    return (
        f"allocated {_allocated(stats) / 1e9:.3f} GB, reserved {_reserved(stats) / 1e9:.3f} GB, "
        f"between them {split / 1e9:.3f} GB in pieces; "
        f"{stats.get('num_alloc_retries', 0)} retries"
    )


def resident() -> float:
    """Bytes of memory that this process takes."""
    return float(psutil.Process().memory_info().rss)


def _peak_resident() -> float:
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def _allocated(stats: Mapping[str, int]) -> float:
    return float(stats.get("allocated_bytes.all.current", 0))


def _reserved(stats: Mapping[str, int]) -> float:
    return float(stats.get("reserved_bytes.all.current", 0))

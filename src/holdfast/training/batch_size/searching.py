"""The largest batch that fits, found by trying: doubling, then halving the gap.

    step = Trial(model, loss, make_optimizer, lambda size: resized(batch, size))
    found = find_batch(step, limit=4096, device=device, say=print)

The model, its optimizer and the random state of the run are as before: a copy is tried.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import psutil
import torch

from ...errors import UsageError
from ...run.host_memory import ran_out
from .memory import host_memory

GIB = 2.0**30
# What is free now will not all be: other processes, fragments, the average of the weights.
_HOST_SHARE, _DEVICE_SHARE = 0.8, 0.95
# A step this long is timed as it is; a shorter one once more, warm.
_LONG = 2.0
# Throughput within this share of the best is as good.
_LEVEL = 0.95


class Try(NamedTuple):
    """One size that was tried: how long a step took, and the bytes it took at the most."""

    batch: int
    seconds: float
    peak: float
    fits: bool = True


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Args:
        batch: the largest size that fits.
        fastest: the smallest size whose throughput is about the best.
        why: why not a larger one, in one line.
        tried: every size, in the order it was tried.
    """

    batch: int
    fastest: int
    why: str
    tried: list[Try]


def find_batch(
    try_step: Callable[[int], None],
    *,
    limit: int,
    say: Callable[[str], None],
    start: int = 1,
    budget_bytes: Callable[[], float] | None = None,
    device: torch.device | None = None,
    step: int | None = None,
    patience: float = 60.0,
) -> SearchResult:
    """Try sizes until the largest that fits is known.

    Args:
        try_step: makes one step with a batch of this size; see ``Trial``.
        limit: no larger size is tried, such as the number of samples.
        say: called with every size that was tried, and the result.
        start: the first size; smaller ones follow if it does not fit.
        budget_bytes: what a step may take at the most, asked before every try; a share of what
            is free now by default.
        device: whose memory counts; the host's by default. There a size that would take too much
            by the look of the smaller ones is not tried: nobody survives the system's answer.
        step: how exact the result is; an eighth by default.
        patience: no new size is tried after so many seconds.
    """
    if not 1 <= start <= limit:
        raise UsageError(f"batch size: start is {start}, limit {limit}; start from 1 up to limit")
    search = _Search(try_step, device or torch.device("cpu"), budget_bytes, say)
    deadline = time.monotonic() + patience
    low, high, size, exact = 0, limit + 1, start, step
    while low < high - 1:
        if search.fits(size):
            low = size
        else:
            high = size
        late = time.monotonic() > deadline
        if low and late:
            if high > limit:
                search.why = f"no larger one was tried after {patience:.0f} s"
            break
        if high > limit:
            size = min(low * 2, limit)
        elif not low:
            size = high // 2
        else:
            exact = exact or max(1, low // 8)
            if high - low <= exact:
                break
            size = low + max(1, (high - low) // 2 // exact) * exact
    if not low:
        raise UsageError(
            f"batch size: not even {high} fits: {search.why}; make the model smaller, "
            f"compute activations again (recompute) or use a lower precision"
        )
    why = search.why if low < limit else "the largest that was asked for"
    fitting = [one for one in search.tried if one.fits]
    best = max(one.batch / one.seconds for one in fitting)
    level = [one.batch for one in fitting if one.batch / one.seconds >= _LEVEL * best]
    found = SearchResult(low, min(level), why, search.tried)
    say(f"batch size {low}: {why}; {best:.4g} samples/s, reached from {found.fastest} up")
    return found


class _Search:
    """Tries one size after the other, and remembers."""

    def __init__(
        self,
        try_step: Callable[[int], None],
        device: torch.device,
        budget_bytes: Callable[[], float] | None,
        say: Callable[[str], None],
    ) -> None:
        self.tried: list[Try] = []
        self.why = ""
        self._try_step = try_step
        self._device = device
        self._say = say
        _clean(device)
        self._used = _used(device)
        free = _free(device)
        self._budget = budget_bytes or (lambda: free)

    def fits(self, size: int) -> bool:
        budget, expected = self._budget(), self._expected(size)
        if self._device.type != "cuda" and expected > budget:
            return self._refuse(size, f"{size} would take {_gb(expected)} of {_gb(budget)}")
        _clean(self._device)
        with _peak(self._device, self._used) as peak:
            seconds = self._seconds(size)
        if seconds is None:
            _clean(self._device)
            return self._refuse(size, f"{size} runs out of memory", peak())
        if peak() > budget:
            return self._refuse(size, f"{size} takes {_gb(peak())} of {_gb(budget)}", peak())
        self.tried.append(Try(size, seconds, peak()))
        self._say(f"batch size {size}: {seconds * 1000:.4g} ms a step, {_gb(peak())}")
        return True

    def _refuse(self, size: int, why: str, peak: float = float("nan")) -> bool:
        self.why = why
        self.tried.append(Try(size, float("nan"), peak, fits=False))
        self._say(f"batch size {why}")
        return False

    def _seconds(self, size: int) -> float | None:
        """How long a step takes; None when memory runs out."""
        try:
            seconds = self._timed(size)
            # The first step of a size also pays for what is made once: kernels, moments, memory.
            return seconds if seconds > _LONG else self._timed(size)
        except Exception as error:
            if not ran_out(error):
                raise
        # Outside of the handler, so that the frames of the failed step are gone.
        return None

    def _timed(self, size: int) -> float:
        began = time.perf_counter()
        self._try_step(size)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return max(time.perf_counter() - began, 1e-9)

    def _expected(self, size: int) -> float:
        """Bytes by the look of the two largest sizes below; memory grows in a straight line."""
        below = sorted(one for one in self.tried if one.fits and one.batch < size)[-2:]
        if not below:
            return 0.0
        last = below[-1]
        first = below[0] if len(below) == 2 else Try(0, 0.0, 0.0)
        slope = max(0.0, (last.peak - first.peak) / (last.batch - first.batch))
        return last.peak + slope * (size - last.batch)


def _clean(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _used(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.memory_reserved(device))
    return float(psutil.Process().memory_info().rss)


def _free(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] * _DEVICE_SHARE
    return host_memory().free * _HOST_SHARE


@contextlib.contextmanager
def _peak(device: torch.device, used: float) -> Iterator[Callable[[], float]]:
    """Bytes taken at the most inside, beyond ``used``: ask after the end."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        yield lambda: max(0.0, torch.cuda.max_memory_reserved(device) - used)
        return
    process, most, ended = psutil.Process(), [used], threading.Event()

    def look() -> None:
        most[0] = max(most[0], process.memory_info().rss)

    def watch() -> None:
        while not ended.wait(0.002):
            look()

    watcher = threading.Thread(target=watch, name="holdfast-memory", daemon=True)
    watcher.start()
    try:
        yield lambda: most[0] - used
        look()
    finally:
        ended.set()
        watcher.join()


def _gb(size: float) -> str:
    return f"{size / GIB:.2f} GB"

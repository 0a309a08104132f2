"""How much memory the process has in use, cheap enough for every step."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections import deque
from collections.abc import Callable

import psutil
import torch

from ...probes.memory import allocated

# Readings that are kept, steps between two of them at most, the blocks they are compared in, and
# the share of those that must rise.
_KEPT = 64
_LONGEST = 16
_BLOCKS = 8
_MOST = 0.85
_NOISE = 256 << 10
# A device's allocator builds a table for each answer: ask it rarely.
_DEVICE_EVERY = 8


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def _reader() -> Callable[[], int]:
    """Bytes in use by malloc where the C library has them, else resident memory."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = _Mallinfo
        mallinfo2.argtypes = []
        mallinfo2()
    except (AttributeError, OSError):
        process = psutil.Process()
        return lambda: int(process.memory_info().rss)

    def read() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return read


class Heap:
    """Readings at the same point of the loop, and what they say about growth."""

    def __init__(self) -> None:
        self._read = _reader()
        self._host: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._device: deque[tuple[int, int]] = deque(maxlen=_KEPT)
        self._rests = 0.0

    def sample(self, step: int, share: float) -> None:
        """Note what is in use at the end of a step, unless that takes too much of the time.

        Args:
            step: its number.
            share: of the time that readings may take; the last 16 steps have one in any case.
        """
        began = time.perf_counter()
        if began < self._rests and step < self._host[-1][0] + _LONGEST:
            return
        self._host.append((step, self._read()))
        self._rests = began + (time.perf_counter() - began) / share
        if step % _DEVICE_EVERY == 0 and torch.cuda.is_initialized():
            self._device.append((step, allocated()))

    def slope(self, count: int = 8) -> float:
        """Bytes that the host uses more with every step; 0 where that is not clear.

        Args:
            count: over so many of the last readings.
        """
        readings = self._host
        # Mostly nothing has grown, and that is seen at once.
        if len(readings) < count or readings[-1][1] <= readings[-count][1] + _NOISE:
            return 0.0
        return _slope(list(readings)[-count:], count)

    def device_slope(self, count: int = 8) -> float:
        """The same of the device."""
        return _slope(list(self._device)[-count:], count)


def _slope(readings: list[tuple[int, int]], wanted: int) -> float:
    """The middle rise from block to block; 0 unless nearly all of them rise.

    A state that is made once, or a copy that is kept from here on, is a jump in one block.
    """
    if len(readings) < wanted:
        return 0.0
    # Few numbers, and no array: the first median of numpy's imports for ten milliseconds.
    size = max(1, len(readings) // _BLOCKS)
    count = len(readings) // size
    last = readings[-count * size :]
    blocks = [last[i * size : (i + 1) * size] for i in range(count)]
    low = [min(used for _, used in block) for block in blocks]
    at = [sum(step for step, _ in block) / size for block in blocks]
    rises = [(low[i] - low[i - 1]) / max(1.0, at[i] - at[i - 1]) for i in range(1, count)]
    clear = sum(rise > 0 for rise in rises) >= _MOST * len(rises)
    return float(statistics.median(rises)) if clear else 0.0

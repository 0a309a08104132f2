"""MEM007: the device allocator is fragmented, or keeps running out of memory and retrying."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types import Finding, Severity
from ._examples import rows
from ._window import (
    Mask,
    Rows,
    Window,
    column,
)
from .base import Detector

_GIB = 2.0**30

Numbers = NDArray[np.float64]


class Fragmentation(Detector):
    """Fragmentation: the allocator reserves more and more memory for the same live tensors.

    What it detects:
        Over the last ``readings`` of the allocator's counters, reserved memory has grown further
        above allocated memory: by at least ``gap`` bytes and to ``times`` as much, while
        allocated memory stayed the same. Or the allocator retried ``retries`` times, at
        ``spread`` readings at least: a retry waits for the device, returns the whole cache to
        the driver and asks again.

    Why it matters:
        Free memory in pieces that fit no tensor is lost: a run dies with "out of memory" while
        gigabytes are "reserved by PyTorch but unallocated". Before that, allocator retries stall
        the device, and the returned memory must be requested from the driver again: such steps
        take many times as long as others.

    Evidence:
        ``key``: ``gap`` or ``retries``; ``reserved`` and ``allocated`` bytes at the last reading,
        ``gap`` between them then and ``gap_before`` at the first; ``retries`` in the ``steps``
        between the two.

    Usual causes:
        - Batches of many different sizes, each a little larger than the free pieces.
        - Large long-lived tensors, allocated between short-lived ones.
        - A model that just fits: every larger batch makes the allocator run out.

    What to do:
        1. ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` in the environment.
        2. Pad to a few fixed lengths, or sort by length; start with the largest batch.
        3. Where tensors fill nearly all memory: a smaller batch with accumulation.

    False alarms:
        Memory reserved for a single large batch does not grow further and is not reported;
        neither are one or two retries, as at the start of a validation.

    Cost:
        None of its own: it reads three columns that are sampled on a few steps.

    Reproduce:
        ``holdfast run -m holdfast.faults.fragmentation`` and
        ``python -m holdfast.faults.fragmentation``, on a machine with a CUDA device.
    """

    code = "MEM007"
    name = "fragmentation"
    severity = Severity.WARNING
    needs = ("mem_allocated", "mem_reserved")
    since = "0.1"
    within = 128
    fires = rows(8, mem_allocated=2e9, mem_reserved=[2e9 + 4e8 * i for i in range(8)])
    silent = rows(8, mem_allocated=2e9, mem_reserved=[2e9 + 4e7 * i for i in range(8)])

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """Measured with the two faults of the catalogue on an H200."""

        readings: int = 8
        """Readings of the allocator's counters that are compared."""
        gap: float = 512.0 * 2**20
        """Bytes by which unused reserved memory must have grown."""
        times: float = 1.5
        """Factor by which it must have grown."""
        steady: float = 0.1
        """Most by which allocated memory may differ meanwhile, as a share."""
        retries: float = 4.0
        """Allocator retries over these readings."""
        spread: int = 3
        """Readings at which the number of retries must have risen."""

    def suspects(self, window: Window) -> Mask:
        """Rows on which the counters were read."""
        allocated, reserved = (column(window.new, name) for name in self.needs)
        return np.isfinite(reserved) & np.isfinite(allocated) & (reserved > 0)

    def check(self, window: Window) -> Finding | None:
        """Compare the last readings with each other."""
        rows = window.rows[-256 * self.options.readings :]
        allocated, reserved = (column(rows, name).astype(np.float64) for name in self.needs)
        seen = np.isfinite(reserved) & np.isfinite(allocated) & (allocated > 0)
        rows = rows[seen][-self.options.readings :]
        if len(rows) < self.options.readings:
            return None
        allocated, reserved = (column(rows, name).astype(np.float64) for name in self.needs)
        return self._retried(window, rows, allocated, reserved) or self._parted(
            window, allocated, reserved
        )

    def _parted(self, window: Window, allocated: Numbers, reserved: Numbers) -> Finding | None:
        gaps = reserved - allocated
        steady = np.ptp(allocated) <= self.options.steady * allocated[0]
        grew = gaps[-1] - gaps[0] >= self.options.gap and gaps[-1] >= self.options.times * max(
            gaps[0], 1.0
        )
        # One large batch makes one jump; fragmentation keeps growing.
        rises = np.diff(gaps)
        lasting = bool(np.all(rises >= 0)) and float((rises > 0).mean()) >= 0.5
        if not (steady and grew and lasting):
            return None
        return self.finding(
            window,
            f"the allocator reserves {reserved[-1] / _GIB:.1f} GiB for {allocated[-1] / _GIB:.1f} "
            f"GiB of tensors: unused memory grew from {gaps[0] / _GIB:.1f} to "
            f"{gaps[-1] / _GIB:.1f} GiB",
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if it is not yet, and pad "
            "batches to a few fixed sizes",
            evidence={
                "key": "gap",
                "reserved": float(reserved[-1]),
                "allocated": float(allocated[-1]),
                "gap": float(gaps[-1]),
                "gap_before": float(gaps[0]),
            },
        )

    def _retried(
        self, window: Window, rows: Rows, allocated: Numbers, reserved: Numbers
    ) -> Finding | None:
        counts = column(rows, "mem_retries").astype(np.float64)
        if not np.isfinite(counts).all():
            return None
        rises = np.diff(counts)
        retries = float(counts[-1] - counts[0])
        often = retries >= self.options.retries and (rises > 0).sum() >= self.options.spread
        if not (often and rises[-1] > 0):
            return None
        steps = int(rows["step"][-1] - rows["step"][0])
        return self.finding(
            window,
            f"the allocator ran out of memory {retries:.0f} times in {steps} steps and emptied its "
            f"cache each time, which stalls the device: {allocated[-1] / _GIB:.1f} GiB in tensors, "
            f"{reserved[-1] / _GIB:.1f} GiB reserved",
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True if it is not yet, pad batches "
            "to a few fixed sizes, or make them smaller and accumulate",
            evidence={
                "key": "retries",
                "retries": retries,
                "steps": steps,
                "reserved": float(reserved[-1]),
                "allocated": float(allocated[-1]),
            },
        )

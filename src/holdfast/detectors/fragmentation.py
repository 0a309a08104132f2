"""MEM007: the device allocator holds memory that no tensor can use, or runs out again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types import Finding, Severity
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
    """The allocator holds ever more device memory while live tensors need no more of it.

    What it detects:
        Over the last ``readings`` of the allocator's counters, what it holds from the driver has
        grown further above what is in tensors: by ``gap`` bytes at least and ``times`` as much,
        while the tensors themselves stayed the same. Or the allocator ran out ``retries`` times
        among them and at ``spread`` readings at least: then it waits for the device, gives all
        that it has cached back to the driver and asks again.

    Why it matters:
        Memory in pieces that fit nobody is as good as gone: a run dies of "out of memory" with
        gigabytes "reserved by PyTorch but unallocated". Allocator retries before that stop the
        device, and what was given back must be had from the driver again: such steps take many
        times as long as others.

    Evidence:
        ``key``: ``gap`` or ``retries``; ``reserved`` and ``allocated`` bytes at the last reading,
        ``gap`` between them then and ``gap_before`` at the first; ``retries`` in the ``steps``
        between the two.

    Usual causes:
        - Batches of many different sizes, each a little larger than the holes that are left.
        - Large tensors that live long, made between short-lived ones.
        - A model that just fits: every larger batch makes the allocator run out.

    What to do:
        1. ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` in the environment.
        2. Pad to a few fixed lengths, or sort by length; begin with the largest batch.
        3. Where tensors fill nearly all of it: a smaller batch with accumulation.

    False alarms:
        Memory that is held after a single large batch does not grow further, and is not reported;
        neither is the allocator running out once or twice, as when a validation begins.

    Cost:
        None of its own: it reads three columns that are sampled on few steps.

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

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """By what the two faults of the catalogue do on an H200."""

        readings: int = 8
        gap: float = 512.0 * 2**20
        times: float = 1.5
        steady: float = 0.1
        retries: float = 4.0
        spread: int = 3

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
        # One large batch makes one jump; pieces become more and more.
        rises = np.diff(gaps)
        lasting = bool(np.all(rises >= 0)) and float((rises > 0).mean()) >= 0.5
        if not (steady and grew and lasting):
            return None
        return self.finding(
            window,
            f"the allocator holds {reserved[-1] / _GIB:.1f} GiB for {allocated[-1] / _GIB:.1f} GiB "
            f"of tensors, and {gaps[0] / _GIB:.1f} GiB too much grew to {gaps[-1] / _GIB:.1f}",
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and pad batches to a few fixed "
            "sizes",
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
            f"the allocator ran out of memory {retries:.0f} times in {steps} steps and gave its "
            f"cache back each time, which stops the device: {allocated[-1] / _GIB:.1f} GiB in "
            f"tensors, {reserved[-1] / _GIB:.1f} GiB held",
            "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, pad batches to a few fixed "
            "sizes, or make them smaller and accumulate",
            evidence={
                "key": "retries",
                "retries": retries,
                "steps": steps,
                "reserved": float(reserved[-1]),
                "allocated": float(allocated[-1]),
            },
        )

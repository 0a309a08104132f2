"""MEM007: the device allocator holds ever more memory that no tensor uses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..types import Finding, Severity
from ._window import Mask, Window, column
from .base import Detector


class Fragmentation(Detector):
    """The allocator holds ever more device memory while live tensors need no more of it.

    What it detects:
        Over the last ``readings`` of the allocator's counters, what it holds from the driver has
        grown further above what is in tensors: by ``gap`` bytes at least and ``times`` as much,
        while the tensors themselves stayed the same.

    Why it matters:
        Memory in pieces that fit nobody is as good as gone: a run dies of "out of memory" with
        gigabytes "reserved by PyTorch but unallocated", and allocator retries before that make
        single steps slow.

    Evidence:
        ``key``; ``reserved`` and ``allocated`` bytes at the last reading, ``gap`` between them
        then and ``gap_before`` at the first.

    Usual causes:
        - Batches of many different sizes, each a little larger than the holes that are left.
        - Large tensors that live long, made between short-lived ones.

    What to do:
        1. ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`` in the environment.
        2. Pad to a few fixed lengths, or sort by length; begin with the largest batch.

    False alarms:
        Memory that is held after a single large batch does not grow further, and is not reported.

    Cost:
        None of its own: it reads two columns that are sampled on few steps.

    Reproduce:
        ``holdfast run -m holdfast.faults.fragmentation`` and
        ``python -m holdfast.faults.fragmentation``, on a machine with a CUDA device.
    """

    code = "MEM007"
    name = "fragmentation"
    severity = Severity.WARNING
    needs = ("mem_allocated", "mem_reserved")
    since = "0.4"
    within = 128

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """Guesses; no run with real fragmentation has been recorded yet."""

        readings: int = 8
        gap: float = 512.0 * 2**20
        times: float = 1.5
        steady: float = 0.1

    def suspects(self, window: Window) -> Mask:
        """Rows on which the counters were read."""
        allocated, reserved = (column(window.new, name) for name in self.needs)
        return np.isfinite(reserved) & np.isfinite(allocated) & (reserved > 0)

    def check(self, window: Window) -> Finding | None:
        """Compare the first of the last readings with the rest."""
        rows = window.rows[-256 * self.options.readings :]
        allocated, reserved = (column(rows, name).astype(np.float64) for name in self.needs)
        seen = np.isfinite(reserved) & np.isfinite(allocated) & (allocated > 0)
        reserved, allocated = (c[seen][-self.options.readings :] for c in (reserved, allocated))
        if len(reserved) < self.options.readings:
            return None
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
        gib = 2.0**30
        return self.finding(
            window,
            f"the allocator holds {reserved[-1] / gib:.1f} GiB for {allocated[-1] / gib:.1f} GiB "
            f"of tensors, and {gaps[0] / gib:.1f} GiB too much grew to {gaps[-1] / gib:.1f}",
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

"""MEM005: host memory leak; Python or numpy objects pile up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..records.memory import ValueGrowth
from ..types import Severity
from ._growth import OBJECTS, GrowthDetector, speed
from ._memory import amount, at, code_of


class HostGrowth(GrowthDetector):
    """Host memory leak: Python objects or numpy arrays are collected and never freed.

    What it detects:
        A container of plain objects, an array or a string that keeps its content and grows
        every step, by at least ``least`` bytes. Tensors are MEM001.

    Why it matters:
        The host runs out of memory after hours, the system kills the process silently, and
        loader workers that are forked later copy all of it.

    Evidence:
        ``key``: line and variable; ``variable``, ``bytes_per_step`` (estimated from the newest
        items), ``rate`` (items per step), ``size`` (items now), ``grown_for`` (steps),
        ``heap_slope``: bytes that the process grew with each step; ``headline`` and ``source``, the
        statement and the lines around it.

    Usual causes:
        - ``tolist()`` or ``numpy()`` of whole batches kept for a log.
        - Records of every step in a list of dictionaries, images for a summary.
        - ``np.append`` or ``+=`` on a string in the loop, which also copies all of it each time.

    What to do:
        1. Write it to a file right away, or keep a summary.
        2. Bound it: ``collections.deque(maxlen=...)``, or clear it when it has been used.

    False alarms:
        Logs of numbers stay far below ``least``; below ``warn`` it is information. A container
        that the source empties or checks before adding (a cache) is reported only when it has
        grown over ``passes`` passes over the data, or for ``doubtful`` steps; one that grows only
        up to a length, never.

    Cost:
        None of its own: it uses the measurements made for MEM002.

    Reproduce:
        ``holdfast run -m holdfast.faults.host_growth`` names what
        ``python -m holdfast.faults.host_growth`` collects.
    """

    code = "MEM005"
    name = "host_growth"
    other_severities = ((Severity.INFO, "where it grows slowly"),)

    made_of = OBJECTS

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthDetector.Options):
        """Thresholds of all leak detectors.

        Attributes:
            warn: bytes per step above which it is more than information: a gigabyte in 32,000
                steps (a guess).
        """

        warn: float = 32 * 1024.0

    def weight(self, measured: ValueGrowth) -> Severity:
        """Slow growth matters in very long runs only."""
        return self.severity if measured.bytes >= self.options.warn else Severity.INFO

    def what(self, measured: ValueGrowth) -> str:
        """The name, the line and the amount."""
        return (
            f"{measured.path} grows by {amount(measured.bytes)} of host memory per step"
            f"{at(measured)}"
        )

    def next_move(self, measured: ValueGrowth) -> str:
        """What to do at that line."""
        path, line = measured.path or "the container", code_of(measured)
        where = f" at `{line}`" if line else ""
        if measured.read:
            return (
                f"the loop reads {path}: where its newest items are enough, take the old ones out"
                f"{where}; where all are needed, it grows on purpose"
            )
        if measured.single:
            return (
                f"write each part to a file instead of joining it to {path}{where}, or begin "
                f"{path} anew when it has been used"
            )
        # A deque takes the place of a list, not of a dictionary or a set.
        listed = any(word in line for word in (".append(", ".extend(", "+="))
        bound = "collections.deque(maxlen=...), or " if listed else ""
        return (
            f"write it to a file instead of keeping it in {path}{where}, or bound it: "
            f"{bound}{path}.clear() after use"
        )

    def headline(self, measured: ValueGrowth) -> str:
        """What grows."""
        return f"{measured.path or 'a container'} grows with every step"

    def numbers(self, measured: ValueGrowth) -> Mapping[str, Any]:
        """How much and how fast."""
        return speed(measured)

"""MEM005: Python or numpy objects pile up on the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..types import Event, Severity
from ._growth import OBJECTS, GrowthDetector
from ._memory import amount, at, code_of
from ._told import number


class HostGrowth(GrowthDetector):
    """Python objects or numpy arrays are collected step after step and never let go.

    What it detects:
        A container of plain objects, an array or a text that keeps what it has and gets more
        with the steps, at least ``least`` bytes per step. Tensors are MEM001.

    Why it matters:
        The host runs out of memory after hours, the system kills the process without a word, and
        loader workers that are forked later copy all of it.

    Evidence:
        ``key``: line and variable; ``variable``, ``bytes_per_step`` (estimated from the newest
        items), ``rate`` (items per step), ``size`` (items now), ``grown_for`` (steps),
        ``heap_slope``: bytes that the process grew with each step.

    Usual causes:
        - ``tolist()`` or ``numpy()`` of whole batches kept for a log.
        - Records of every step in a list of dictionaries, images for a summary.
        - Figures of pyplot that nobody closes: it keeps every one.
        - ``np.append`` or ``+=`` on a text in the loop, which also copies all of it each time.

    What to do:
        1. Write it to a file as it comes, or keep a summary.
        2. Bound it: ``collections.deque(maxlen=...)``, or clear it when it has been used.

    False alarms:
        Logs of numbers stay far below ``least``, and below ``warn`` it is information. What the
        source empties or asks before it grows is reported only when it has grown over ``passes``
        passes over the data, or for ``doubtful`` steps; what grows only while it is shorter than
        something, never.

    Cost:
        None of its own: it judges what the looks for MEM002 have found on the way.

    Reproduce:
        ``holdfast run -m holdfast.faults.host_growth`` names what
        ``python -m holdfast.faults.host_growth`` collects.
    """

    code = "MEM005"
    name = "host_growth"

    made_of = OBJECTS

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthDetector.Options):
        """As for all that grows.

        Attributes:
            warn: bytes per step from which on it is more than information: a gigabyte in 32,000
                steps (a guess).
        """

        warn: float = 32 * 1024.0

    def weight(self, event: Event) -> Severity:
        """Slow growth matters in very long runs only."""
        return self.severity if number(event, "bytes") >= self.options.warn else Severity.INFO

    def what(self, event: Event) -> str:
        """The name, the line and the amount."""
        return (
            f"{event.data.get('path', 'a container')} grows by {amount(number(event, 'bytes'))} of "
            f"host memory with each step{at(event.data)}"
        )

    def next_move(self, event: Event) -> str:
        """What to do at that line."""
        path, line = str(event.data.get("path") or "the container"), code_of(event.data)
        where = f" at `{line}`" if line else ""
        if event.data.get("name") == "figs":
            return f"close each figure when it has been used: plt.close(figure){where}"
        return (
            f"write it to a file instead of keeping it in {path}{where}, or bound it: "
            f"collections.deque(maxlen=...), or {path}.clear() when it has been used"
        )

    def numbers(self, event: Event) -> Mapping[str, Any]:
        """How much and how fast."""
        return {name: number(event, name) for name in ("rate", "size", "heap_slope")}

"""The numbers of a finding: what was measured, with labels and units.

By the names of its evidence, whichever detector made it; a detector of a plugin that uses the same
names is shown the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..types import Finding
from . import words
from .memory_curves import MemoryGrowth

_MOST = 8


def _count(value: float) -> str:
    return words.figure(float(f"{value:.4g}"))


def _ms(value: float) -> str:
    return words.duration(value / 1e3)


def _steps(value: float) -> str:
    return words.plural(round(value), "step")


# What a name of the evidence is called, and how its value is written; the most telling first.
_NUMBERS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "bytes_per_step": ("it grows per step", words.size),
    "held": ("held by old graphs", words.size),
    "rate": ("items per step", _count),
    "size": ("items so far", _count),
    "age": ("reaches back", _steps),
    "grown_for": ("seen growing for", _steps),
    "made_ms": ("a batch takes to make", _ms),
    "cores": ("cores", _count),
    "heap_slope": ("process grew per step", words.size),
    "nodes": ("graph nodes", _count),
    "evaluations": ("evaluations so far", _count),
    "asked": ("asked for", words.size),
    "capacity": ("there is", words.size),
    "batch": ("batch", _count),
    "share": ("share of the time", words.percent),
    "lost": ("lost when found", words.duration),
    "stall_ms": ("each stall", _ms),
    "every": ("every", _steps),
    "wait_ms": ("waits per step", _ms),
    "line_ms": ("this line per step", _ms),
    "line_before_ms": ("this line at first", _ms),
    "line_now_ms": ("this line now", _ms),
    "before_ms": ("a step at first", _ms),
    "now_ms": ("a step now", _ms),
    "step_ms": ("a step", _ms),
    "reads": ("reads per step", _count),
    "times": ("compilations", _count),
    "seconds": ("time when found", words.duration),
    "went_on": ("went on after", words.duration),
    "longest": ("longest pause before", words.duration),
    "workers": ("loader workers", _count),
}


def measured_of(finding: Finding, growth: MemoryGrowth | None = None) -> list[tuple[str, str]]:
    """Label and value of each number, the most telling first; zeros and gaps say nothing."""
    evidence: Mapping[str, Any] = finding.evidence
    if "age" in evidence:  # for as long as it reaches back
        evidence = {name: value for name, value in evidence.items() if name != "grown_for"}
    found: list[tuple[str, str]] = []
    if isinstance(name := evidence.get("variable"), str) and name:
        found.append(("variable", words.clip(name, 60)))
        if growth is not None:
            found.append(("whole process, per step", words.size(growth.per_step)))
            share = words.percent(growth.total / growth.end)
            found.append(("whole process, in all", f"{words.size(growth.total)}, {share} at last"))
    for key, (label, reported) in _NUMBERS.items():
        value: object = evidence.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and value > 0:
            found.append((label, reported(float(value))))
    return found[:_MOST]

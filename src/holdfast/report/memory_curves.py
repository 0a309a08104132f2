"""Memory over a run, part by part: what weights and optimizer take, and what grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..records.memory import PartSizes
from ..run import LaneData, Rows
from ..types import Finding, place_words
from . import words
from .columns import column
from .layers import Mask, Norms

PARTS = ("weights", "gradients", "optimizer state")
"""Parts whose sizes are recorded."""
HOST, DEVICE = "rss", "mem_allocated"
# Less than this share is not seen in a plot.
_LEAST = 0.005


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryGrowth:
    """Memory that was added since a step, and what was found to grow."""

    since: int
    names: tuple[str, ...]
    """Variable and line of each finding."""
    per_step: float
    """Bytes per step, by the measured memory of the process or the device."""
    total: float
    end: float
    """All memory at the last measurement."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryCurves:
    """Measured memory of the process or the device, and its parts; one value for each step."""

    on_device: bool
    steps: Norms
    total: Norms
    parts: tuple[tuple[str, Norms], ...]
    """Largest share of the total each, in the order in which they are stacked."""
    growth: MemoryGrowth | None
    last_measured: int


def memory_curves_of(lane: LaneData, findings: Sequence[Finding] = ()) -> list[MemoryCurves]:
    """Memory of the device, where there is one, and of the process."""
    rows = lane.steps[np.argsort(lane.steps["step"], kind="stable")]
    found: list[MemoryCurves] = []
    for name in (DEVICE, HOST):
        values = column(rows, name).astype(np.float64)
        known = np.isfinite(values) & (values > 0)
        if known.any():
            found.append(_course(lane, rows, findings, values, known, on_device=name == DEVICE))
    return found


def _course(
    lane: LaneData, rows: Rows, findings: Sequence[Finding], values: Norms, known: Mask, *,
    on_device: bool,
) -> MemoryCurves:  # fmt: skip
    steps, total = rows["step"][known].astype(np.float64), values[known]
    growth = _growth(findings, steps, total)
    measured, end = int(steps[-1]), float(rows["step"][-1])
    if end > steps[-1]:
        # Sampled: the last value holds until the end, and the caption says when it was read.
        steps, total = np.append(steps, end), np.append(total, total[-1])
    parts = _parts(lane, steps, on_device=on_device)
    if parts and (np.sum([part for _, part in parts], axis=0) > total).any():
        parts = []  # of several devices, or given away meanwhile: no parts of this total
    rest = total - sum((part for _, part in parts), np.zeros(len(total)))
    if growth is not None:
        before = rest[max(0, int(np.searchsorted(steps, growth.since, "right")) - 1)]
        grown = np.where(steps >= growth.since, np.maximum(rest - before, 0.0), 0.0)
        parts += [(_rest_name(on_device, parts), rest - grown), ("growth", grown)]
    else:
        parts += [(_rest_name(on_device, parts), rest)]
    return MemoryCurves(
        on_device=on_device, steps=steps, total=total, parts=tuple(parts), growth=growth,
        last_measured=measured,
    )  # fmt: skip


def _rest_name(on_device: bool, parts: Sequence[object]) -> str:
    if not parts:
        return "device memory" if on_device else "process"
    return "activations and others" if on_device else "libraries, Python, activations, data"


def _parts(lane: LaneData, steps: Norms, *, on_device: bool) -> list[tuple[str, Norms]]:
    """Weights, gradients and optimizer state, from the last reading before each step."""
    measured = [(event.step, PartSizes.of(event)) for event in lane.events]
    sizes = [(at, one) for at, one in measured if one and (one.device != "cpu") == on_device]
    if not sizes:
        return []
    at = np.array([step for step, _ in sizes])
    # They were there before they were first measured.
    which = np.maximum(np.searchsorted(at, steps, "right") - 1, 0)
    found: list[tuple[str, Norms]] = []
    rows = [(one.weights, one.gradients, one.optimizer_state) for _, one in sizes]
    for name, known in zip(PARTS, np.array(rows, dtype=np.float64).T, strict=True):
        if known.max() > 0:
            found.append((name, known[which]))
    return found


def _growth(findings: Sequence[Finding], steps: Norms, total: Norms) -> MemoryGrowth | None:
    """What the findings name, and how much memory was added since the first of them began."""
    grown: list[tuple[int, str]] = []
    for finding in findings:
        name, steps_grown = finding.evidence.get("variable"), finding.evidence.get("grown_for")
        if isinstance(name, str) and isinstance(steps_grown, int | float):
            since = max(0, finding.step - int(steps_grown))
            near = f" ({_near(finding)})" if finding.file and finding.line else ""
            grown.append((since, f"{name or 'a variable'}{near}"))
    if not grown:
        return None
    since = min(step for step, _ in grown)
    after = steps >= since
    if after.sum() < 2:
        return None
    added = float(total[after][-1] - total[after][0])
    over = float(steps[after][-1] - steps[after][0]) or 1.0
    if added < _LEAST * float(total[after][0]):
        return None
    names = tuple(dict.fromkeys(words.clip(name, 60) for _, name in grown))
    return MemoryGrowth(
        since=since, names=names, per_step=added / over, total=added, end=float(total[-1])
    )


def _near(finding: Finding) -> str:
    return place_words(finding.file.replace("\\", "/").rpartition("/")[2], finding.line)

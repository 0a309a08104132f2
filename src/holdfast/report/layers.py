"""Gradient norms by layer around one step, from the tables ``layersN`` and ``updatesN``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.recfunctions import structured_to_unstructured
from numpy.typing import NDArray

from ..run import LaneData, Rows
from ..types import Finding
from .cause import cause_of
from .columns import column

REACH = 8
"""Steps either side; the recorder writes as many around an incident."""
SHOWN = 32
"""Layers listed one by one; the rest is counted."""

Norms = NDArray[np.float64]
Mask = NDArray[np.bool_]


def layer_names(rows: Rows) -> tuple[str, ...]:
    """The layers of a table: its columns besides step and time."""
    return tuple(name for name in rows.dtype.names or () if name not in ("step", "time"))


def matrix(rows: Rows) -> Norms:
    """The values of a layer table, one line per row."""
    names = list(layer_names(rows))
    if not names or not len(rows):
        return np.zeros((len(rows), len(names)))
    return structured_to_unstructured(rows[names], dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerWindow:
    """All layers on the steps around an incident, which is column ``at``; one line a layer."""

    names: tuple[str, ...]
    norms: Norms
    missing: Mask
    """Cells without a gradient, which are no fault."""
    bad: Mask
    steps: tuple[int, ...]
    at: int
    blamed: int
    """The layer that became bad first; -1 when all did at once, with the loss."""


def window_around(lane: LaneData, finding: Finding) -> LayerWindow | None:
    """The layers around the first step of a finding; None when they were not recorded."""
    table = lane.tables.get(f"layers{optimizer_of(finding)}")
    if table is None or finding.step not in table["step"] or not layer_names(table):
        return None
    near = table[np.abs(table["step"] - finding.step) <= REACH]
    near = near[np.unique(near["step"], return_index=True)[1]]
    names, norms = layer_names(near), matrix(near).T
    missing = _missing(lane, finding, table, near)
    return LayerWindow(
        names=names,
        norms=norms,
        missing=missing,
        bad=~np.isfinite(norms) & ~missing,
        steps=tuple(int(step) for step in near["step"]),
        at=int(np.searchsorted(near["step"], finding.step)),
        blamed=_blamed(lane, finding, names),
    )


def optimizer_of(finding: Finding) -> int:
    """The optimizer whose step it was."""
    return int(finding.evidence.get("opt", 0))


def loss_was_bad(lane: LaneData, finding: Finding) -> bool:
    """Whether the loss of that step was non-finite."""
    rows = lane.steps[lane.steps["step"] == finding.step]
    return bool(np.any(column(rows, "loss_bad") > 0))


def _blamed(lane: LaneData, finding: Finding, names: tuple[str, ...]) -> int:
    if loss_was_bad(lane, finding):
        return -1
    cause = cause_of(finding)
    for name in (finding.evidence.get("layer"), cause.recorded.layer if cause else ""):
        if name in names:
            return names.index(name)
    rows = lane.steps[lane.steps["step"] == finding.step]
    rows = rows[np.nan_to_num(column(rows, "opt")) == optimizer_of(finding)]
    index = float(column(rows, "grad_layer")[-1]) if len(rows) else -1.0
    return int(index) if 0 <= index < len(names) else -1


def _missing(lane: LaneData, finding: Finding, table: Rows, near: Rows) -> Mask:
    """Cells where NaN means no gradient: frozen layers on a good step."""
    ever = np.isfinite(matrix(table)).any(axis=0)
    frozen = ~ever if ever.any() else np.zeros_like(ever)
    steps = lane.steps[np.nan_to_num(column(lane.steps, "opt")) == optimizer_of(finding)]
    troubled = steps["step"][(column(steps, "grad_bad") > 0) | (column(steps, "loss_bad") > 0)]
    untroubled: Mask = np.isin(near["step"], troubled, invert=True)
    return np.isnan(matrix(near).T) & (untroubled.reshape(1, -1) | frozen.reshape(-1, 1))


def worth_showing(window: LayerWindow) -> list[int]:
    """The layers worth a line, in the order of the model."""
    count = len(window.names)
    if count <= SHOWN:
        return list(range(count))
    largest, growth = np.full(count, -1.0), np.full(count, -1.0)
    past = np.where(window.bad, np.nan, window.norms)[:, : window.at]
    known = np.isfinite(past).any(axis=1)
    if known.any():
        largest[known] = np.nanmax(past[known], axis=1)
        growth[known] = largest[known] / np.maximum(np.nanmedian(past[known], axis=1), 1e-30)
    blamed = window.blamed
    groups: list[NDArray[np.intp]] = [
        np.arange(max(0, blamed - 2), min(count, blamed + 3)) if blamed >= 0 else np.arange(0),
        np.argsort(-growth, kind="stable")[: SHOWN // 4],
        np.argsort(-largest, kind="stable")[: SHOWN // 4],
        some(np.flatnonzero(window.bad[:, window.at]), SHOWN // 4),
        some(np.arange(count), SHOWN),
    ]
    wanted = dict.fromkeys(int(index) for group in groups for index in group)
    return sorted(list(wanted)[:SHOWN])


def some(indices: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """So many of them, evenly spread."""
    if len(indices) <= count:
        return indices
    return indices[np.linspace(0, len(indices) - 1, count).astype(np.intp)]

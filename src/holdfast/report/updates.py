"""Update size of each layer relative to its norm, from the tables ``updatesN``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..run import LaneData
from .layers import layer_names, matrix

SHOWN = 16
"""Layers listed one by one: those with the largest and those with the smallest updates."""
_LEAST = 4
# A change so many times the weight's own size says only that the weight was zero: a bias that
# takes its first step.
_FROM_ZERO = 1e3

USUAL = 1e-3
"""Rule of thumb for a healthy update; not a limit."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """One layer: change of the weights over their norm, over all steps it was measured on."""

    layer: str
    low: float
    median: float
    high: float
    step: int
    """Where the largest was measured."""


@dataclass(frozen=True, kw_only=True)
class LayerUpdates:
    """The layers of one optimizer, what moved most first."""

    opt: int
    shown: tuple[Update, ...]
    total: int
    samples: int
    still: tuple[str, ...]
    """Layers that never moved."""


def updates_of(lane: LaneData) -> list[LayerUpdates]:
    """The update sizes of every optimizer that has them recorded."""
    found: list[LayerUpdates] = []
    for table, rows in sorted(lane.tables.items()):
        opt = table.removeprefix("updates")
        if table == opt or not opt.isdigit() or not len(rows):
            continue
        names, values = layer_names(rows), matrix(rows)
        # NaN is in no range either: not measured.
        values = np.where((values >= 0) & (values < _FROM_ZERO), values, np.nan)
        measured = np.flatnonzero(~np.isnan(values).all(axis=0))
        updates = [
            Update(
                layer=names[i],
                low=float(np.nanmin(values[:, i])),
                median=float(np.nanmedian(values[:, i])),
                high=float(np.nanmax(values[:, i])),
                step=int(rows["step"][int(np.nanargmax(values[:, i]))]),
            )
            for i in measured.tolist()
        ]
        moving = sorted((u for u in updates if u.high > 0), key=lambda u: -u.high)
        shown = moving
        if len(moving) > SHOWN:
            shown = [*moving[: SHOWN - _LEAST], *moving[-_LEAST:]]
        found.append(
            LayerUpdates(
                opt=int(opt),
                shown=tuple(shown),
                total=len(names),
                samples=len(rows),
                still=tuple(u.layer for u in updates if u.high == 0),
            )
        )
    return [updates for updates in found if updates.shown or updates.still]

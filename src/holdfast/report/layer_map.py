"""Gradient norms of the layers over a whole run: the layers that matter, in equal stretches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..run import LaneData, Rows
from .columns import column
from .layers import Mask, Norms, layer_names, matrix, some

SHOWN = 24
"""Layers with a line of their own: as many as can be told apart."""
COLUMNS = 48
"""Stretches of the run."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerMap:
    """The layers of one optimizer, in the order of the model; one column for each stretch."""

    opt: int
    names: tuple[str, ...]
    norms: Norms
    """Median of each stretch; where nothing was measured, the measurement before it."""
    bad: Norms
    """Share of the steps of each stretch with a non-finite gradient."""
    first: Norms
    typical: Norms
    largest: Norms
    last: Norms
    total: int
    samples: int

    @property
    def changes(self) -> list[tuple[str, float]]:
        """Layers whose norm rose or fell most over the run, and how many times; most first."""
        with np.errstate(divide="ignore", invalid="ignore"):
            times = self.last / self.first
        known = np.flatnonzero(np.isfinite(times) & (times > 0))
        order = known[np.argsort(-np.abs(np.log(times[known])), kind="stable")]
        return [(self.names[int(i)], float(times[i])) for i in order]


def layer_maps(lane: LaneData) -> list[LayerMap]:
    """A map for each optimizer whose layers were measured."""
    found: list[LayerMap] = []
    if not len(lane.steps):
        return found
    span = float(lane.steps["step"].min()), float(lane.steps["step"].max())
    for name, rows in sorted(lane.tables.items()):
        number = name.removeprefix("layers")
        if name == number or not number.isdigit() or not len(rows):
            continue
        made = _map(lane, int(number), rows, span)
        if made is not None:
            found.append(made)
    return found


def _map(lane: LaneData, opt: int, rows: Rows, span: tuple[float, float]) -> LayerMap | None:
    rows = rows[np.argsort(rows["step"], kind="stable")]
    names, norms = layer_names(rows), matrix(rows)
    finite = np.isfinite(norms)
    measured = np.flatnonzero(finite.any(axis=0))
    if not measured.size:
        return None
    steps = lane.steps[np.nan_to_num(column(lane.steps, "opt")) == opt]
    troubled = steps["step"][(column(steps, "grad_bad") > 0) | (column(steps, "loss_bad") > 0)]
    # Elsewhere NaN means that a layer had no gradient, which is no fault.
    bad: Mask = ~finite & np.isin(rows["step"], troubled)[:, None]
    values = np.where(finite, norms, np.nan)[:, measured]
    first, last = _ends(values)
    typical, largest = np.nanmedian(values, axis=0), np.nanmax(values, axis=0)
    ever: Mask = np.any(bad[:, measured], axis=0)
    chosen = _chosen(first, typical, last, ever)
    cells, wrong = _columns(rows["step"], values[:, chosen], bad[:, measured[chosen]], span)
    return LayerMap(
        opt=opt,
        names=tuple(names[int(i)] for i in measured[chosen]),
        norms=cells,
        bad=wrong,
        first=first[chosen],
        typical=typical[chosen],
        largest=largest[chosen],
        last=last[chosen],
        total=len(names),
        samples=len(np.unique(rows["step"])),
    )


def _ends(values: Norms) -> tuple[Norms, Norms]:
    """The first and the last measured value of every layer."""
    known = np.isfinite(values)
    place: NDArray[np.intp] = np.arange(values.shape[1], dtype=np.intp)
    first = values[known.argmax(axis=0), place]
    last = values[len(values) - 1 - known[::-1].argmax(axis=0), place]
    return first, last


def _chosen(first: Norms, typical: Norms, last: Norms, bad: Mask) -> NDArray[np.intp]:
    """The layers worth a line: ever bad, changed most, largest, smallest, and some of the rest."""
    count = len(typical)
    if count <= SHOWN:
        return np.arange(count)
    change = np.abs(np.log(np.maximum(last, 1e-30) / np.maximum(first, 1e-30)))
    size = np.argsort(-typical, kind="stable")
    groups = [
        some(np.flatnonzero(bad), SHOWN // 4),
        np.argsort(-change, kind="stable")[: SHOWN // 4],
        size[: SHOWN // 4],
        size[-SHOWN // 8 :],
        some(np.arange(count), SHOWN),
    ]
    wanted = dict.fromkeys(int(index) for group in groups for index in group)
    return np.array(sorted(list(wanted)[:SHOWN]), dtype=np.intp)


def _columns(
    steps: NDArray[np.int64], values: Norms, bad: Mask, span: tuple[float, float]
) -> tuple[Norms, Norms]:
    """Medians of equal stretches of the run and the share of bad steps, a line for each layer."""
    low, high = span
    columns = int(min(COLUMNS, high - low + 1))
    place = np.clip((steps - low) / ((high - low) or 1.0) * columns, 0, columns - 1).astype(np.intp)
    cells = np.full((values.shape[1], columns), np.nan)
    wrong = np.zeros(cells.shape)
    each = (high - low + 1) / columns
    for at in range(columns):
        here = place == at
        if here.any():
            part = values[here]
            known = np.isfinite(part).any(axis=0)
            cells[known, at] = np.nanmedian(part[:, known], axis=0)
            wrong[:, at] = np.minimum(1.0, bad[here].sum(axis=0) / each)
        if at:
            unknown = np.isnan(cells[:, at])
            cells[unknown, at] = cells[unknown, at - 1]
    return cells, wrong

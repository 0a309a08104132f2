"""The plots of one lane: loss, gradients, where the time goes, memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ...run import LaneData, Rows
from .. import pace, words
from ..lanes import PHASES, column, first_optimizer
from ..layers import Mask, layer_names, matrix
from .axes import Axis, step_axis, value_axis
from .chart import (
    COLUMNS,
    Chart,
    Curve,
    Marks,
)
from .curves import Values, bin_means

TOP = 6
"""Layers with a curve of their own: as many as can be distinguished."""
COARSE = 150
"""Columns of the plots of further lanes: enough to compare, few enough for many of them."""
_BINS = 160


def plots_of(
    lane: LaneData, others: Sequence[LaneData] = (), *, columns: int = COLUMNS, layers: bool = True
) -> Iterator[Chart]:
    """The charts of a lane that has something to show; ``others`` are laid over its loss."""
    rows = _in_order(lane.steps)
    if not len(rows):
        return
    axis = step_axis(float(rows["step"][0]), float(rows["step"][-1]))
    charts = [_loss(lane, rows, axis, others, columns), _gradients(lane, rows, axis, columns)]
    charts += _layers(lane, axis, columns) if layers else []
    charts += [_time(lane, rows, axis), _memory(lane, rows, axis, columns)]
    yield from (chart for chart in charts if chart is not None)


def _loss(
    lane: LaneData, rows: Rows, axis: Axis, others: Sequence[LaneData], columns: int
) -> Chart | None:
    curve = _loss_curve(rows, f"rank {lane.rank}" if others else "loss", "s0")
    also: list[Curve] = []
    for other in others:
        name = f"rank {other.rank}" if other.rank != lane.rank else other.lane
        also.append(_loss_curve(_in_order(other.steps), name, "other"))
    ends = [float(end) for c in also if len(c.x) for end in c.x[[0, -1]]]
    axis = step_axis(min([axis.low, *ends]), max([axis.high, *ends])) if ends else axis
    scale = value_axis([curve.y, *(other.y for other in also)])
    marks = _marks(lane, rows)
    if scale is None:
        return None
    known = np.flatnonzero(np.isfinite(curve.y))
    caption = "No finite loss was recorded."
    if known.size:
        y, x = curve.y[known], curve.x[known]
        least = int(np.argmin(y))
        caption = (
            f"Loss from {words.figure(y[0])} to {words.figure(y[-1])} over "
            f"{words.plural(int(rows['step'][-1] - rows['step'][0]) + 1, 'step')}; lowest "
            f"{words.figure(y[least])} at step {words.number(int(x[least]))}, highest "
            f"{words.figure(y.max())} at step {words.number(int(x[int(np.argmax(y))]))}."
        )
    caption += "".join(
        f" {words.plural(len(mark.x), 'step')} {mark.name}." for mark in marks if len(mark.x)
    )
    return Chart(
        key=f"loss-{lane.lane}", title=_titled("Loss", scale), caption=caption, x=axis, y=scale,
        curves=[*also, curve], marks=marks, columns=columns,
    )  # fmt: skip


def _loss_curve(rows: Rows, name: str, style: str) -> Curve:
    bad = column(rows, "loss_bad") > 0
    return _curve(rows, name, style, column(rows, "loss"), bad, first_optimizer(rows))


def _curve(
    rows: Rows, name: str, style: str, values: NDArray[np.float32], bad: Mask, among: Mask
) -> Curve:
    """Values of some rows; a bad one is a gap, one that was not measured is nothing at all."""
    seen = among & (bad | ~np.isnan(values))
    y = np.where(bad[seen], np.nan, values[seen]).astype(np.float64)
    return Curve(name=name, style=style, x=rows["step"][seen].astype(np.float64), y=y)


def _marks(lane: LaneData, rows: Rows) -> list[Marks]:
    steps = rows["step"].astype(np.float64)
    skipped, scaler = column(rows, "skipped") > 0, column(rows, "scaler_skipped") > 0
    bad = (column(rows, "loss_bad") > 0) | (column(rows, "grad_bad") > 0)
    back = np.unique([float(event.step) for event in lane.events if event.kind == "rollback"])
    return [
        Marks(name="skipped by holdfast", shape="skip", x=np.unique(steps[skipped])),
        Marks(name="skipped by GradScaler", shape="scaler", x=np.unique(steps[scaler & ~skipped])),
        Marks(
            name="non-finite and not skipped", shape="bad",
            x=np.unique(steps[bad & ~skipped & ~scaler]),
        ),
        Marks(name="where the run was rolled back", shape="back", x=back),
    ]  # fmt: skip


def _gradients(lane: LaneData, rows: Rows, axis: Axis, columns: int) -> Chart | None:
    numbers = np.nan_to_num(column(rows, "opt"))
    found = np.unique(numbers)
    norm, bad = column(rows, "grad_norm"), column(rows, "grad_bad") > 0
    curves = [
        _curve(
            rows, f"optimizer {opt:.0f}" if len(found) > 1 else "all gradients", f"s{i}",
            norm, bad, numbers == opt,
        )
        for i, opt in enumerate(found[:TOP])
    ]  # fmt: skip
    scale = value_axis(curve.y for curve in curves)
    if scale is None:
        return None
    caption = " ".join(
        f"{words.capital(curve.name)}: {_range(curve)}." for curve in curves if len(curve.y)
    )
    return Chart(
        key=f"grad-{lane.lane}", title=_titled("Gradient norm", scale), caption=caption, x=axis,
        y=scale, curves=curves, marks=[mark for mark in _marks(lane, rows) if len(mark.x)],
        columns=columns,
    )  # fmt: skip


def _layers(lane: LaneData, axis: Axis, columns: int) -> Iterator[Chart | None]:
    """The layers with the largest norms, of each optimizer."""
    for name, rows in sorted(lane.tables.items()):
        number = name.removeprefix("layers")
        if name == number or not number.isdigit() or not len(rows):
            continue
        names, norms = layer_names(rows), matrix(rows)
        norms = np.where(np.isfinite(norms), norms, np.nan)
        measured = np.flatnonzero(~np.isnan(norms).all(axis=0))
        if not measured.size:
            continue
        typical = np.nanmedian(norms[:, measured], axis=0)
        top = measured[np.argsort(-typical, kind="stable")][:TOP]
        x = rows["step"].astype(np.float64)
        curves = [
            Curve(name=words.clip(names[int(i)], 60), style=f"s{k}", x=x, y=norms[:, i])
            for k, i in enumerate(top)
        ]
        scale = value_axis(curve.y for curve in curves)
        if scale is None:
            continue
        shown = f"The {len(top)} largest" if len(top) < len(names) else "All"
        caption = (
            f"{shown} of {words.plural(len(names), 'layer')} by median norm, on "
            f"{words.plural(len(rows), 'step')}: every so often, and all around an incident."
        )
        of = (
            f", optimizer {number}"
            if f"layers{int(number) + 1}" in lane.tables or number != "0"
            else ""
        )
        yield Chart(
            key=f"layers{number}-{lane.lane}", title=_titled(f"Gradient norm by layer{of}", scale),
            caption=caption, x=axis, y=scale, curves=curves, columns=min(columns, COLUMNS // 2),
        )  # fmt: skip


def _time(lane: LaneData, rows: Rows, axis: Axis) -> Chart | None:
    measured = {name: column(rows, name).astype(np.float64) for name in PHASES}
    measured = {name: values for name, values in measured.items() if np.isfinite(values).any()}
    if not measured:
        return None
    x = rows["step"].astype(np.float64)
    middles, means = bin_means(x, np.stack(list(measured.values())), _BINS)
    if len(middles) == 1:
        middles, means = np.repeat(middles, 2), np.repeat(means, 2, axis=1)
    # The outer bins reach to the edges of the plot, not to their middles only.
    middles[0], middles[-1] = axis.low, axis.high
    heights = np.cumsum(means, axis=0)
    scale = value_axis([heights], kind="seconds", log=False, zero=True)
    if scale is None:
        return None
    totals = {name: float(np.nanmean(values)) for name, values in measured.items()}
    all_of_it = sum(totals.values()) or 1.0
    caption = f"On average {words.duration(sum(totals.values()))} a step: " + ", ".join(
        f"{name.replace('_', ' ')} {words.percent(value / all_of_it)}"
        for name, value in totals.items()
    )
    caption = ". ".join(filter(None, [caption, pace.verdict(rows[first_optimizer(rows)], totals)]))
    curves = [
        Curve(name=name.replace("_", " "), style=f"f{PHASES.index(name)}", x=middles, y=height)
        for name, height in zip(measured, heights, strict=True)
    ]
    return Chart(
        key=f"time-{lane.lane}", title="Time of a step by phase", caption=f"{caption}.",
        x=axis, y=scale, curves=curves, stacked=True,
    )  # fmt: skip


def _memory(lane: LaneData, rows: Rows, axis: Axis, columns: int) -> Chart | None:
    names = {"rss": "host (rss)", "mem_reserved": "GPU reserved", "mem_allocated": "GPU allocated"}
    curves: list[Curve] = []
    for i, (name, title) in enumerate(names.items()):
        values = column(rows, name).astype(np.float64)
        # Sampled: what lies between two samples is not missing.
        known = np.isfinite(values)
        if known.any() and values[known].max() > 0:
            x = rows["step"][known].astype(np.float64)
            curves.append(Curve(name=title, style=f"s{i}", x=x, y=values[known]))
    scale = value_axis((curve.y for curve in curves), kind="bytes", log=False, zero=True)
    if scale is None:
        return None
    caption = " ".join(
        f"{words.capital(curve.name)}: {words.size(float(curve.y[0]))} at first, "
        f"{words.size(float(curve.y.max()))} at most, {words.size(float(curve.y[-1]))} at last."
        for curve in curves
    )
    return Chart(
        key=f"memory-{lane.lane}", title="Memory", caption=caption, x=axis, y=scale, curves=curves,
        columns=columns,
    )  # fmt: skip


def _in_order(rows: Rows) -> Rows:
    """Rows of a damaged file may be out of order, and a curve needs them in order."""
    if np.all(np.diff(rows["step"]) >= 0):
        return rows
    return rows[np.argsort(rows["step"], kind="stable")]


def _range(curve: Curve) -> str:
    known: Values = curve.y[np.isfinite(curve.y)]
    if not known.size:
        return "never finite"
    return (
        f"from {words.figure(known.min())} to {words.figure(known.max())}, median "
        f"{words.figure(float(np.median(known)))}"
    )


def _titled(title: str, axis: Axis) -> str:
    return f"{title} (log scale)" if axis.log else title

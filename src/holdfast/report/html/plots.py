"""The plots of one rank: loss, gradients, where the time goes, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...records.recovery import RolledBack
from ...run import LaneData, Rows
from ...types import Finding
from .. import pace, words
from ..columns import column, of_first_optimizer
from ..lanes import PHASES
from ..layers import Mask
from ..losses import loss_name, losses_of, main_loss, named, set_apart
from ..memory_curves import MemoryCurves, memory_curves_of
from ..run_curves import RunCurves
from .axes import Axis, step_axis, value_axis
from .chart import (
    COLUMNS,
    Chart,
    ChartLine,
    StepMarks,
)
from .curves import Values, bin_means

TOP = 6
"""Optimizers with a curve of their own: as many as can be distinguished."""
COARSE = 150
"""Columns of the plots of further lanes: enough to compare, few enough for many of them."""
_BINS = 160
_PARTS = {"weights": "f3", "gradients": "f2", "optimizer state": "f4", "growth": "grown"}


def loss_plot(run_curves: RunCurves, others: Sequence[RunCurves] = ()) -> Chart | None:
    """The loss of a course, other courses laid over it."""
    rows = _in_order(run_curves.lane.steps)
    return _loss(run_curves, rows, others) if len(rows) else None


def plots_of(
    run_curves: RunCurves,
    findings: Sequence[Finding] = (),
    *,
    columns: int = COLUMNS,
    loss: bool = False,
) -> Iterator[Chart]:
    """The charts of a course that has something to show, without its layers.

    Args:
        run_curves: one rank.
        findings: of this rank; what they say to grow is named in the plot of the memory.
        columns: pixels across.
        loss: with the loss, where it has no plot of its own.
    """
    rows, lane = _in_order(run_curves.lane.steps), run_curves.lane
    if not len(rows):
        return
    axis = step_axis(float(rows["step"][0]), float(rows["step"][-1]))
    charts = [_loss(run_curves, rows, (), columns)] if loss else []
    charts += [_gradients(run_curves, rows, axis, columns), _time(lane, rows, axis)]
    charts += [_memory(lane, axis, memory) for memory in memory_curves_of(lane, findings)]
    yield from (chart for chart in charts if chart is not None)


def _loss(
    run_curves: RunCurves, rows: Rows, others: Sequence[RunCurves], columns: int = COLUMNS
) -> Chart | None:
    lane = run_curves.lane
    curve, *more = _loss_curves(run_curves, rows)
    if not more:
        curve = replace(curve, name=f"rank {lane.rank}" if others else "loss")
    also = [
        _loss_curve(_in_order(again), "made again later", "other") for again in run_curves.redone
    ]
    for other in others:
        name = f"rank {other.lane.rank}" if other.lane.rank != lane.rank else other.lane.lane
        also.append(_loss_curve(_in_order(other.lane.steps), name, "other"))
    ends = [float(end) for c in [curve, *also] if len(c.x) for end in c.x[[0, -1]]]
    ends += [float(end) for end in rows["step"][[0, -1]]]
    axis = step_axis(min(ends), max(ends))
    scale = value_axis([curve.y, *(other.y for other in (*more, *also))])
    marks = _marks(run_curves, rows)
    if scale is None:
        return None
    caption = _loss_words(curve, rows, curve.name if more else "Loss")
    caption += "".join(f" {_loss_words(one, rows, one.name)}" for one in more)
    caption += "".join(
        f" {words.plural(len(mark.x), 'step')} {mark.name}."
        for mark in marks
        if len(mark.x) and mark.shape != "join"
    )
    if run_curves.resume_points:
        steps = words.listed([words.number(step) for step in run_curves.resume_points])
        caption += f" Resumed at step {steps}."
    return Chart(
        key=f"loss-{lane.lane}", title=_titled("Loss", scale), caption=caption, x=axis, y=scale,
        curves=[*also, *more, curve], marks=marks, columns=columns,
    )  # fmt: skip


def _loss_words(curve: ChartLine, rows: Rows, name: str) -> str:
    known = np.flatnonzero(np.isfinite(curve.y))
    if not known.size:
        return f"{name}: no finite one was recorded."
    y, x = curve.y[known], curve.x[known]
    least = int(np.argmin(y))
    steps = words.plural(int(rows["step"][-1] - rows["step"][0]) + 1, "step")
    last, end = words.figure(y[-1]), ""
    if known[-1] < len(curve.y) - 1:
        # A finite loss is not the last one: the run ended without it.
        end = f" (the last finite one, at step {words.number(int(x[-1]))}; then NaN or infinite)"
    return (
        f"{name} from {words.figure(y[0])} to {last}{end} over {steps}; lowest "
        f"{words.figure(y[least])} at step {words.number(int(x[least]))}, highest "
        f"{words.figure(y.max())} at step {words.number(int(x[int(np.argmax(y))]))}."
    )


def loss_change(run_curves: RunCurves) -> str:
    """``0.58 → 0.07``, ``0.58 → NaN`` for a run whose last loss was; empty without a loss.

    Of several losses each with its name.
    """
    reported = losses_of(run_curves.lane)
    if len(reported) > 1:
        return "; ".join(filter(None, (one.change for one in reported[:TOP])))
    first, last = (reported[0].first, reported[0].last) if reported else (math.nan, math.nan)
    if math.isnan(first) and not column(run_curves.lane.steps, "loss_bad").any():
        return ""
    end = words.figure(last)
    return end if math.isnan(first) else f"{words.figure(first)} → {end}"


def _loss_curves(run_curves: RunCurves, rows: Rows) -> list[ChartLine]:
    """A curve for each loss, the one that most steps are about first."""
    return [
        _loss_curve(rows, loss_name(named(run_curves.lane.events, number), number), f"s{i}", own)
        for i, (number, own) in enumerate(set_apart(rows)[:TOP])
    ]


def _loss_curve(rows: Rows, name: str, style: str, own: Mask | None = None) -> ChartLine:
    bad = column(rows, "loss_bad") > 0
    among = main_loss(rows) if own is None else own
    return _curve(rows, name, style, column(rows, "loss"), bad, among)


def _curve(
    rows: Rows, name: str, style: str, values: NDArray[np.float32], bad: Mask, among: Mask
) -> ChartLine:
    """Values of some rows; a bad one is a gap, one that was not measured is nothing at all."""
    seen = among & (bad | ~np.isnan(values))
    y = np.where(bad[seen], np.nan, values[seen]).astype(np.float64)
    return ChartLine(name=name, style=style, x=rows["step"][seen].astype(np.float64), y=y)


def _marks(run_curves: RunCurves, rows: Rows) -> list[StepMarks]:
    lane = run_curves.lane
    steps = rows["step"].astype(np.float64)
    skipped, scaler = column(rows, "skipped") > 0, column(rows, "scaler_skipped") > 0
    bad = (column(rows, "loss_bad") > 0) | (column(rows, "grad_bad") > 0)
    back = np.unique([float(event.step) for event in lane.events if event.kind == RolledBack.kind])
    return [
        StepMarks(name="skipped by holdfast", shape="skip", x=np.unique(steps[skipped])),
        StepMarks(
            name="skipped by GradScaler",
            shape="scaler",
            x=np.unique(steps[scaler & ~skipped]),
        ),
        StepMarks(
            name="non-finite and not skipped", shape="bad",
            x=np.unique(steps[bad & ~skipped & ~scaler]),
        ),
        StepMarks(name="where the run was rolled back", shape="back", x=back),
        StepMarks(
            name="resumed",
            shape="join",
            x=np.array(run_curves.resume_points, dtype=np.float64),
        ),
    ]  # fmt: skip


def _gradients(run_curves: RunCurves, rows: Rows, axis: Axis, columns: int) -> Chart | None:
    lane = run_curves.lane
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
        y=scale, curves=curves, marks=[mark for mark in _marks(run_curves, rows) if len(mark.x)],
        columns=columns,
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
    caption = ". ".join(filter(None, [caption, pace.verdict(of_first_optimizer(rows), totals)]))
    curves = [
        ChartLine(name=name.replace("_", " "), style=f"f{PHASES.index(name)}", x=middles, y=height)
        for name, height in zip(measured, heights, strict=True)
    ]
    return Chart(
        key=f"time-{lane.lane}", title="Time of a step by phase", caption=f"{caption}.",
        x=axis, y=scale, curves=curves, stacked=True,
    )  # fmt: skip


def _memory(lane: LaneData, axis: Axis, memory: MemoryCurves) -> Chart | None:
    heights = np.cumsum([part for _, part in memory.parts], axis=0)
    scale = value_axis([heights], kind="bytes", log=False, zero=True)
    if scale is None:
        return None
    grown, names = memory.growth, [name for name, _ in memory.parts]
    if grown is not None:
        names[-1] = f"added since step {words.number(grown.since)}: {words.listed(grown.names)}"
    styles = [_PARTS.get(name, "f5") for name, _ in memory.parts]
    curves = [
        ChartLine(name=name, style=style, x=memory.steps, y=height)
        for name, style, height in zip(names, styles, heights, strict=True)
    ]
    where = "device" if memory.on_device else "host"
    return Chart(
        key=f"memory-{'device-' if memory.on_device else ''}{lane.lane}",
        title=f"Memory of the {where}", caption=_memory_words(lane, memory), x=axis, y=scale,
        curves=curves, stacked=True,
    )  # fmt: skip


def _memory_words(lane: LaneData, memory: MemoryCurves) -> str:
    total, grown = memory.total, memory.growth
    said = [
        f"{words.size(float(total[0]))} at first, {words.size(float(total.max()))} at most, "
        f"{words.size(float(total[-1]))} at last"
    ]
    known = [f"{name} {words.size(float(part[-1]))}" for name, part in memory.parts[:-1]]
    said[0] += f"; {', '.join(known)} at last" if known and grown is None else ""
    if grown is not None:
        share = words.percent(grown.total / float(total[-1]))
        said.append(
            f"It grew by {words.size(grown.per_step)} a step since step "
            f"{words.number(grown.since)}, {words.size(grown.total)} in all, {share} of what was "
            f"used at last; what grows: {words.listed(grown.names)}"
        )
    reserved = column(lane.steps, "mem_reserved")
    if memory.on_device and np.isfinite(reserved).any():
        held = words.size(float(np.nanmax(reserved)))
        said.append(f"The allocator held {held} of the device at most")
    if memory.last_measured < memory.steps[-1]:
        said.append(f"Sampled, the last time at step {words.number(memory.last_measured)}")
    return ". ".join(said) + "."


def _in_order(rows: Rows) -> Rows:
    """Rows of a damaged file may be out of order, and a curve needs them in order."""
    if np.all(np.diff(rows["step"]) >= 0):
        return rows
    return rows[np.argsort(rows["step"], kind="stable")]


def _range(curve: ChartLine) -> str:
    known: Values = curve.y[np.isfinite(curve.y)]
    if not known.size:
        return "never finite"
    return (
        f"from {words.figure(known.min())} to {words.figure(known.max())}, median "
        f"{words.figure(float(np.median(known)))}"
    )


def _titled(title: str, axis: Axis) -> str:
    return f"{title} (log scale)" if axis.log else title

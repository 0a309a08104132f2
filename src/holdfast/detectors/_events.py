"""Events of the guard about a step: a rollback, a new level, a stop.

An event belongs to the first row of its optimizer that is not older than it, and is reported with
that row, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..records import Kind
from ..records.recovery import RolledBack, RunStopped
from ..records.steps import Comparable
from ..types import Event, Finding, Severity
from ._window import HISTORY, Mask, Window, optimizer
from .base import Detector

K = TypeVar("K", bound=Kind)


def _any(record: object) -> bool:
    return True


def rows_with_event(window: Window, kinds: Sequence[type[Kind]]) -> Mask:
    """Which of the new rows may have an event of these kinds."""
    words = {kind.kind for kind in kinds}
    marked = np.zeros(len(window), dtype=np.bool_)
    for event in window.events:
        if event.kind in words:
            marked[_since(window, event)[:1]] = True
    return marked[len(window) - window.fresh :]


def event_at(
    window: Window, kind: type[K], which: Callable[[K], bool] = _any
) -> tuple[int, K] | None:
    """The record of this kind that belongs to the judged row, and its step; None without one.

    Args:
        window: the judged row and those before it.
        kind: of the event.
        which: whether it is one of those that are looked for.
    """
    for event, record in _records(window, kind):
        rows = _since(window, event)
        # Where earlier rows are no longer held, the first one may be any.
        forgotten = len(window) >= HISTORY and rows[0] == 0
        if which(record) and rows[0] == len(window) - 1 and not forgotten:
            return event.step, record
    return None


def latest(window: Window, kind: type[K], which: Callable[[K], bool] = _any) -> int:
    """The step of the last event of this kind; -1 where there was none."""
    known = (event.step for event, record in _records(window, kind) if which(record))
    return max(known, default=-1)


def happened(
    window: Window,
    kind: type[K],
    start: int,
    stop: int | None = None,
    which: Callable[[K], bool] = _any,
) -> bool:
    """Whether there was such an event from step ``start`` on, before step ``stop`` if given."""
    end = window.step + 1 if stop is None else stop
    return any(
        start <= event.step < end and which(record) for event, record in _records(window, kind)
    )


def rolled_back(
    detector: Detector, window: Window, done: RolledBack, story: str, advice: str, **evidence: Any
) -> Finding:
    """The finding of a rollback; ``story`` says what the loss did."""
    steps, to = f"{done.steps} steps", f"step {done.to}"
    what = f"rolled back {steps} to {to}"
    if done.validation is not None:
        what = f"went back {steps} to the best state by validation, that of {to}"
    finding = detector.finding(
        window,
        f"{what}{story}",
        advice,
        severity=Severity.ERROR,
        evidence={
            "key": "rollback",
            **evidence,
            "tried": finite(done.tried),
            "rolled_back": float(done.steps),
            "to": float(done.to),
            "lr_factor": done.lr_factor,
            "left": math.nan if done.left is None else float(done.left),
        },
    )
    return replace(finding, action="rollback")


def finite(value: float) -> float:
    """A number of an event; NaN where it is infinite: as evidence that says as little."""
    return value if math.isfinite(value) else math.nan


def nonfinite(done: RolledBack) -> bool:
    """Whether a rollback was made because of NaN or infinity, not of a loss that rose."""
    return done.why == "weights" or not math.isfinite(done.loss)


def nonfinite_story(done: RolledBack, start: int) -> tuple[str, str]:
    """What such a rollback says, and its advice."""
    what = "weights were" if done.why == "weights" else "loss or gradients were"
    return (
        f": {what} not finite from step {start} on",
        "repair what makes them so: the finding about NaN or inf at that step names its line where "
        "it is known; if it begins slowly, lower the learning rate",
    )


def stopped(detector: Detector, window: Window, advice: str) -> Finding | None:
    """The finding of the judged row if the run was stopped there because of this detector."""
    found = event_at(window, RunStopped, lambda stop: stop.code == detector.code)
    if found is None:
        return None
    _, stop = found
    why = stop.why or "the budget is spent"
    kept = stop.checkpoint or "the last good checkpoint"
    loss, usual = window.value("loss"), window.value("loss_baseline")
    finding = detector.finding(
        window,
        f"loss {loss:.4g}, baseline {usual:.4g}, and rolling back does not help ({why[:80]})",
        f"resume from {kept} and {advice}",
        severity=Severity.ERROR,
        evidence={"key": "stop", "usual": usual},
    )
    return replace(finding, action="stop")


def not_comparable(window: Window) -> str:
    """Why losses cannot be compared at the judged row; empty where they can."""
    own = (None, window.opt)
    said = (
        Comparable.of(event)
        for event in reversed(window.events)
        if event.step <= window.step and event.data.get("opt") in own
    )
    newest = next(filter(None, said), None)
    return "" if newest is None else newest.why


def number(event: Event, name: str) -> float:
    """A number among the data of an event; NaN where there is none."""
    value: object = event.data.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _records(window: Window, kind: type[K]) -> Iterator[tuple[Event, K]]:
    """Events up to the judged row, of its optimizer or of all; the latest first."""
    own = (None, window.opt)
    for event in reversed(window.events):
        record = kind.of(event)
        if record is not None and event.step <= window.step and _opt(record) in own:
            yield event, record


def _opt(record: Kind) -> int | None:
    """The optimizer that a record is about; None for one about all of them."""
    return getattr(record, "opt", None)


def _since(window: Window, event: Event) -> NDArray[np.intp]:
    """Indices of the rows since an event, of its optimizer where it has one."""
    since = window.rows["step"] >= event.step
    opt: object = event.data.get("opt")
    if isinstance(opt, int):
        since &= optimizer(window.rows) == opt
    return np.flatnonzero(since)

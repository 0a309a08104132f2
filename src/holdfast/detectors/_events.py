"""Events of the guard about a step: a rollback, a new level, a stop.

An event belongs to the first row of its optimizer that is not older than it, and is reported with
that row, once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records.steps import Comparable
from ..types import Event, Finding, Severity
from ._window import HISTORY, Mask, Window, optimizer
from .base import Detector


def rows_with_event(window: Window, kinds: Sequence[str]) -> Mask:
    """Which of the new rows may have an event of these kinds."""
    marked = np.zeros(len(window), dtype=np.bool_)
    for event in window.events:
        if event.kind in kinds:
            marked[_since(window, event)[:1]] = True
    return marked[len(window) - window.fresh :]


def event_at(window: Window, kind: str, **data: Any) -> Event | None:
    """The event of this kind, and with these data, that belongs to the judged row."""
    for event in _events(window, kind):
        rows = _since(window, event)
        # Where earlier rows are no longer held, the first one may be any.
        forgotten = len(window) >= HISTORY and rows[0] == 0
        known = all(event.data.get(name) == value for name, value in data.items())
        if known and rows[0] == len(window) - 1 and not forgotten:
            return event
    return None


def latest(window: Window, kind: str, **data: Any) -> int:
    """The step of the last event of this kind, and with these data; -1 where there was none."""
    known = (
        event.step
        for event in _events(window, kind)
        if all(event.data.get(name) == value for name, value in data.items())
    )
    return max(known, default=-1)


def happened(window: Window, kind: str, start: int, stop: int | None = None, **data: Any) -> bool:
    """Whether there was such an event from step ``start`` on, before step ``stop`` if given."""
    end = window.step + 1 if stop is None else stop
    return any(
        start <= event.step < end
        and all(event.data.get(name) == value for name, value in data.items())
        for event in _events(window, kind)
    )


def rolled_back(
    detector: Detector, window: Window, event: Event, story: str, advice: str, **evidence: Any
) -> Finding:
    """The finding of a rollback; ``story`` says what the loss did."""
    steps, to = f"{number(event, 'steps'):.0f} steps", f"step {number(event, 'to'):.0f}"
    what = f"rolled back {steps} to {to}"
    if "validation" in event.data:
        what = f"went back {steps} to the best state by validation, that of {to}"
    finding = detector.finding(
        window,
        f"{what}{story}",
        advice,
        severity=Severity.ERROR,
        evidence={
            "key": "rollback",
            **evidence,
            "tried": number(event, "tried"),
            "rolled_back": number(event, "steps"),
            "to": number(event, "to"),
            "lr_factor": number(event, "lr_factor"),
            "left": number(event, "left"),
        },
    )
    return replace(finding, action="rollback")


def nonfinite(event: Event) -> bool:
    """Whether a rollback was made because of NaN or infinity, not of a loss that rose."""
    loss = number(event, "loss")
    return event.data.get("why") == "weights" or not math.isfinite(loss)


def nonfinite_story(event: Event, start: int) -> tuple[str, str]:
    """What such a rollback says, and its advice."""
    what = "weights were" if event.data.get("why") == "weights" else "loss or gradients were"
    return (
        f": {what} not finite from step {start} on",
        "repair what makes them so: the finding about NaN or inf at that step names its line where "
        "it is known; if it begins slowly, lower the learning rate",
    )


def stopped(detector: Detector, window: Window, advice: str) -> Finding | None:
    """The finding of the judged row if the run was stopped there because of this detector."""
    stop = event_at(window, "stop", code=detector.code)
    if stop is None:
        return None
    why = str(stop.data.get("why") or "the budget is spent")
    kept = stop.data.get("checkpoint") or "the last good checkpoint"
    loss, usual = window.value("loss"), window.value("loss_usual")
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
    said = (Comparable.of(event) for event in _events(window, Comparable.kind))
    newest = next(filter(None, said), None)
    return "" if newest is None else newest.why


def number(event: Event, name: str) -> float:
    """A number among the data of an event; NaN where there is none."""
    value: object = event.data.get(name)
    return float(value) if isinstance(value, int | float) else math.nan


def _events(window: Window, kind: str) -> list[Event]:
    """Events up to the judged row, of its optimizer or of all; the latest first."""
    mine = (None, window.opt)
    return [
        event
        for event in reversed(window.events)
        if event.kind == kind and event.step <= window.step and event.data.get("opt") in mine
    ]


def _since(window: Window, event: Event) -> NDArray[np.intp]:
    """Indices of the rows since an event, of its optimizer where it has one."""
    since = window.rows["step"] >= event.step
    opt: object = event.data.get("opt")
    if isinstance(opt, int):
        since &= optimizer(window.rows) == opt
    return np.flatnonzero(since)

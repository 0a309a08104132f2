"""RUN002: an exception is caught on every batch, and nothing is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ..records.crash import RaisedException
from ..records.crash import SwallowedException as Recorded
from ..types import Finding, Severity
from ._crashes import Crash, clip, explain
from ._examples import rows
from ._window import Window
from .base import Detector

_MESSAGE = 90

_RAISED = Recorded(type="KeyError", message="'cat'", file="data.py", line=31, batches=9)


class SwallowedException(Detector):
    """The loop catches the same exception on every batch: nothing is trained.

    What it detects:
        Batches come from a loader, gradients are on and the model is in training mode, but no
        optimizer steps, because an exception in the body of the loop is caught on every batch
        before ``backward`` or ``step``.

    Why it matters:
        ``except Exception: continue`` is meant for a rare broken sample. When every batch fails
        the script runs to its end, prints its epochs, and saves weights that were never trained.

    Evidence:
        ``error``: class and message; ``batches`` without a step when it was seen;
        ``headline``: the cause in a few words; ``cause``: statement and lines around it.

    Usual causes:
        - A ``try`` around the whole step hides an ordinary error: a shape, a device, a key.
        - An out-of-memory handler that catches every ``RuntimeError``.

    What to do:
        1. Repair the line that raises.
        2. Catch only what is meant (``torch.OutOfMemoryError``), count it, and raise after a few
           in a row.

    False alarms:
        None known: the same line must raise on three batches in a row, after six without a step,
        and the ``try`` that catches it must hold the rest of the step.

    Cost:
        One count per batch and per step. The trace follows three batches, only where six came
        without a step in training mode.

    Reproduce:
        ``holdfast run -m holdfast.faults.swallowed_exception`` names the line that
        ``python -m holdfast.faults.swallowed_exception`` never mentions.
    """

    code = "RUN002"
    name = "swallowed_exception"
    severity = Severity.ERROR
    needs = ("loss",)
    since = "0.1"
    within = 20
    judges_events = True
    fires = rows(8, _RAISED)
    silent = rows(8, RaisedException(type="KeyError", message="'cat'"))

    def scan(self, window: Window) -> Iterator[Finding]:
        """The event, with the first row that is not older than it."""
        first = len(window) - window.fresh
        for event in window.events:
            swallowed = Recorded.of(event)
            if swallowed is None:
                continue
            rows = np.flatnonzero(window.rows["step"] >= event.step)
            if rows.size and rows[0] >= first:
                yield self._finding(window.ending(int(rows[0])), swallowed, event.step)
                return

    def check(self, window: Window) -> Finding | None:
        """The same for one row."""
        return next(self.scan(replace(window, fresh=1)), None)

    def _finding(self, window: Window, swallowed: Recorded, step: int) -> Finding:
        raised = RaisedException(
            type=swallowed.type,
            message=swallowed.message,
            file=swallowed.file,
            line=swallowed.line,
            code=swallowed.code,
        )
        facts, cause = Crash(data=raised), explain(raised)
        place, batches, written = facts.place, swallowed.batches, swallowed.to_dict()
        said = f"{facts.type}: {(facts.message.splitlines() or [''])[0]}".rstrip(": ")
        before = np.any(window.rows["step"] < step)
        since = f" after step {step}" if before else ""
        where = f" at {place.where}" if place.line else ""
        finding = self.finding(
            window,
            f"{clip(said, _MESSAGE)}{where} is caught on every batch, {batches} without a step",
            f"nothing is trained{since}: repair this line ({cause.advice}) and let the except "
            "catch only what is meant",
            severity=self.severity,
            evidence={
                "error": clip(said, 400),
                "batches": float(batches),
                "headline": cause.headline,
                "cause": {k: written[k] for k in ("code", "excerpt") if k in written},
            },
        )
        return replace(finding, file=swallowed.file, line=swallowed.line)

"""OPT001: loss spike; the loss jumped far above its baseline and stayed there."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..records.recovery import NewLossLevel, OnlyObserved, RolledBack, RunStopped, TrialResult
from ..types import Finding, Severity
from ._events import (
    event_at,
    finite,
    happened,
    rolled_back,
    rows_with_event,
    stopped,
)
from ._examples import rows
from ._outliers import (
    ends_spike,
    rate,
    rate_advice,
    spike,
)
from ._window import Mask, Window, column
from .base import Detector

# A new level within this many steps of a rise that was reported is the same story.
_REPORTED = 64


class LossSpike(Detector):
    """Loss spike: the loss jumped far above its baseline and stayed there for some steps.

    What it detects:
        Losses above ``loss_limit`` over steps whose updates were applied: so many that holdfast
        rolled back to an earlier state and found that its weights do better (error), or at least
        ``rows`` in a row that then came back by themselves (info). One bad batch whose step
        was skipped is OPT002. A spike that returns after a rollback is OPT003. A level that
        stays, because the data or the task has changed, is reported as a new level and is no
        fault (info). Where losses cannot be compared over time (the loop makes its own data, two
        optimizers train against each other, the dataset is replaced), a rise is told and nothing
        is done (info; a warning where it is ``beyond`` times the largest loss before it).

    Why it matters:
        A spike means that the weights were damaged, not only that one batch was hard. Some runs
        recover after hours, some never; the moments of Adam keep the large gradients for
        hundreds of steps. The weights from before the spike are still good.

    Evidence:
        ``key``: ``rollback``, ``observed``, ``level`` or ``stop``, none for a spike that came back;
        ``spike_start``, ``spike_rows`` and ``peak``; ``usual`` and ``limit``: baseline and
        threshold when it began; with a rollback ``rolled_back`` steps, ``to``, ``tried``: the loss
        with the old weights, ``lr_factor``, ``moments_reset``, ``left``: how many more are
        allowed; for a new level ``before`` and ``after``.

    Usual causes:
        - A learning rate that is too high for some steps: a typo in a schedule, a warm-up that
          is too short, a restart, a resume that forgot the scheduler.
        - A window of broken or differently scaled data that was not large enough, step by step,
          to be skipped.
        - Gradients much larger than Adam's second moment expects (``beta2`` of 0.999 averages
          over a thousand steps), or an update lost in fp16 or bf16 weights.
        - Weights written by hand: an EMA copied back, a layer unfrozen or re-initialised.

    What to do:
        1. Look at the batches and at ``lr`` right before ``spike_start``; the report draws both.
        2. Often, with the learning rate as planned: a longer warm-up, ``beta2`` of 0.95,
           or clipping (``--clip-adaptive``).
        3. An intended jump (curriculum, new stage, unfreezing) is fine: holdfast learns the
           new level. ``--on OPT001=observe`` keeps it from rolling back.
        4. A rise that was only observed: ``--on OPT001=rollback`` lets holdfast roll back although
           it cannot compare the losses of this loop.

    False alarms:
        Losses are compared with the run's own median and spread, so that noise, large units and
        sums do not matter. A spike that comes back by itself is information: rare hard batches, a
        warm restart of the learning rate and a task that had to be learned first look the same.

    Cost:
        None of its own: the guard compares the loss with its threshold on every step.

    Reproduce:
        ``holdfast run -m holdfast.faults.loss_spike`` rolls back to before the spike that
        ``python -m holdfast.faults.loss_spike`` never recovers from.
    """

    code = "OPT001"
    name = "loss_spike"
    severity = Severity.ERROR
    other_severities = (
        (Severity.WARNING, "where nothing was done about a loss far beyond all before"),
        (Severity.INFO, "of a spike that is over, and of a new level"),
    )
    needs = ("loss", "outlier")
    since = "0.1"
    within = 18
    soon_after = "NUM005"
    fires = rows(8, loss={-4: 60, -3: 50, -2: 40}, outlier={-4: 2, -3: 2, -2: 2})
    silent = rows(8, loss={-3: 50, -2: 40}, outlier={-3: 2, -2: 2})

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """What makes a spike; see *False alarms* for where these come from."""

        rows: int = 3
        """Updates applied at a high loss before it is a spike."""
        beyond: float = 100.0
        """Factor of a loss that was only observed on the largest before, from which on it is a
        warning: no healthy script of the tests goes there. A guess, as in OPT002."""

    def suspects(self, window: Window) -> Mask:
        """Rows that end a spike, and those that came with an event."""
        kinds = (RolledBack, OnlyObserved, TrialResult, NewLossLevel, RunStopped)
        return ends_spike(window) | rows_with_event(window, kinds)

    def check(self, window: Window) -> Finding | None:
        """Report a rollback, a rise that was only observed, a new level, or a spike's end."""
        undone = event_at(window, RolledBack, lambda done: done.code == self.code)
        if undone is not None:
            return self._rolled_back(window, undone[1])
        seen = event_at(window, OnlyObserved, lambda seen: seen.code == self.code)
        if seen is not None:
            return self._observed(window, seen[1])
        level = _new_level(window)
        if level is not None:
            return self._level(window, *level)
        stop = stopped(self, window, f"lower the learning rate{rate(window)}")
        return stop if stop is not None else self._over(window)

    def _rolled_back(self, window: Window, done: RolledBack) -> Finding:
        loss, usual = finite(done.loss), finite(done.usual)
        start = window.step if done.first is None else done.first
        story = (
            f": loss {usual:.4g} -> {loss:.4g} since step {start}, and the old weights do better"
        )
        advice = (
            f"{rate_advice(window, start)}; clip with --clip-adaptive, or repair the batches "
            f"before step {start}; --on OPT001=observe if the jump is intended"
        )
        if done.why == "nonfinite":
            # The old weights were finite on one batch, which may be the luck of that batch.
            story = f": skipped in a row since step {start} for values that are not finite"
            advice = (
                "mend what NUM001 or NUM002 names as their cause; where none is named, "
                f"{rate_advice(window, start)}"
            )
        return rolled_back(
            self,
            window,
            done,
            story,
            advice,
            spike_start=start,
            peak=loss,
            usual=usual,
            moments_reset=done.moments_reset,
        )

    def _observed(self, window: Window, seen: OnlyObserved) -> Finding:
        loss, usual, start = finite(seen.loss), finite(seen.usual), seen.first
        beyond = loss > self.options.beyond * _largest_before(window, start)
        return self.finding(
            window,
            f"the loss is far above its baseline since step {start}: {usual:.4g} -> {loss:.4g}; "
            f"nothing was done, because {seen.why or 'losses cannot be compared'}",
            "nothing if losses of this loop move like that when it learns; "
            f"--on {self.code}=rollback lets holdfast try the weights from before",
            severity=Severity.WARNING if beyond else Severity.INFO,
            evidence={"key": "observed", "spike_start": start, "peak": loss, "usual": usual},
        )

    def _level(self, window: Window, before: float, after: float, why: str) -> Finding:
        return self.finding(
            window,
            f"the loss has a new level: {after:.4g}, {before:.4g} before ({why})",
            "nothing if the task or the data changes here (curriculum, new stage); otherwise "
            f"compare the batches before and after step {window.step}",
            severity=Severity.INFO,
            evidence={"key": "level", "before": before, "after": after},
        )

    def _over(self, window: Window) -> Finding | None:
        high = spike(window)
        if high is None or high.applied < self.options.rows or not high.back:
            return None
        start = _step(window, int(high.rows[0]))
        if happened(window, RolledBack, start) or happened(window, OnlyObserved, start):
            return None
        return self.finding(
            window,
            f"the loss is back at {window.value('loss'):.4g} after {len(high.rows)} steps up to "
            f"{high.peak:.4g}, baseline {high.usual:.4g} (since step {start})",
            f"nothing if it stays rare; else look at the batches right before step {start}, clip "
            f"with --clip-adaptive, or: {rate_advice(window, start)}",
            severity=Severity.INFO,
            evidence={
                "spike_start": start,
                "spike_rows": len(high.rows),
                "peak": high.peak,
                "usual": high.usual,
                "limit": high.limit,
            },
        )


def _new_level(window: Window) -> tuple[float, float, str] | None:
    """The loss before and after, where the guard says that it has a new level."""
    tried = event_at(window, TrialResult, _of_data)
    # Of NaN there is no level, and one that fell is no spike.
    if tried is not None:
        _, trial = tried
        if _rose(trial.usual, trial.loss) and _rose(trial.usual, trial.tried):
            why = f"the weights from before have {trial.tried:.4g} there too"
            return trial.usual, trial.loss, why
    found = event_at(window, NewLossLevel)
    # The result of a trial has been reported already.
    if found is None:
        return None
    step, level = found
    if not _rose(level.before, level.after) or happened(window, TrialResult, step, which=_of_data):
        return None
    if happened(window, OnlyObserved, step - _REPORTED):
        return None
    return level.before, level.after, "it stayed there"


def _of_data(trial: TrialResult) -> bool:
    return trial.verdict == "data"


def _rose(before: float, after: float) -> bool:
    return -math.inf < before < after < math.inf


def _largest_before(window: Window, start: int) -> float:
    """The largest absolute loss of this optimizer before a step; infinite where there was none."""
    rows = window.rows[window.own]
    losses = np.abs(column(rows, "loss")[rows["step"] < start])
    return float(np.max(losses[np.isfinite(losses)], initial=0.0)) or math.inf


def _step(window: Window, row: int) -> int:
    return int(window.rows["step"][row])

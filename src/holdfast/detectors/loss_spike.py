"""OPT001: loss spike; the loss jumped far above its baseline and stayed there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..types import Event, Finding, Severity
from ._events import (
    event_at,
    happened,
    number,
    rows_with_event,
)
from ._outliers import (
    LOSS,
    Spike,
    ends_spike,
    far,
    rate,
    spike,
)
from ._window import Mask, Window
from .base import Detector


class LossSpike(Detector):
    """Loss spike: the loss jumped far above its baseline and stayed there for some steps.

    What it detects:
        Losses above ``loss_limit`` over steps whose updates were applied: at least ``rows`` in a
        row that then came back by themselves (warning), or so many that holdfast rolled back to
        an earlier state and found that its weights do better (error). One bad batch whose step
        was skipped is OPT002. A spike that returns after a rollback is OPT003. A level that
        stays, because the data or the task has changed, is reported as a new level and is no
        fault (info).

    Why it matters:
        A spike means that the weights were damaged, not only that one batch was hard. Some runs
        recover after hours, some never; the moments of Adam keep the large gradients for
        hundreds of steps. The weights from before the spike are still good.

    Evidence:
        ``key``: ``rollback``, ``level`` or ``stop``, none for a spike that came back;
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

    False alarms:
        Losses are compared with the run's own median and spread, so that noise, large units and
        sums do not matter. A spike that comes back is a warning when its peak is ``beyond``
        times the largest loss before it; or when it lasted ``short`` steps at most, its middle
        is ``clear`` times as far from the baseline as the threshold, and no earlier one was half
        as high (rare hard batches recur; a longer one may be a task that had to be learned
        first). Where the learning rate rose by a factor of ``restart`` at its beginning, it is a
        warm restart. All else is information. The numbers are guesses, checked against the noisy
        and the spiking scripts of the tests.

    Cost:
        None of its own: the guard compares the loss with its threshold on every step.

    Reproduce:
        ``holdfast run -m holdfast.faults.loss_spike`` rolls back to before the spike that
        ``python -m holdfast.faults.loss_spike`` never recovers from.
    """

    code = "OPT001"
    name = "loss_spike"
    severity = Severity.ERROR
    needs = ("loss", "outlier")
    since = "0.1"
    within = 18

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """What makes a spike; see *False alarms* for where these come from."""

        rows: int = 3
        short: int = 16
        clear: float = 2.0
        beyond: float = 100.0
        restart: float = 1.5
        level: int = 64
        """Consecutive high rows, without any action, that count as a new level."""

    def suspects(self, window: Window) -> Mask:
        """Rows that end a spike or are deep in one, and those that came with an event."""
        heard = rows_with_event(window, ("rollback", "trial", "level", "stop"))
        return far(window.new, LOSS) | ends_spike(window) | heard

    def check(self, window: Window) -> Finding | None:
        """Report a rollback, a new level, or a spike that is over, in this order."""
        undone = event_at(window, "rollback", code=self.code)
        if undone is not None:
            return self._rolled_back(window, undone)
        level = _new_level(window)
        if level is not None:
            return self._level(window, *level)
        stop = event_at(window, "stop", code=self.code)
        if stop is not None:
            return self._stopped(window, stop)
        if far(window.rows[-1:], LOSS)[0]:
            lasting = spike(window, over=False)
            if lasting is None or len(lasting.rows) != self.options.level:
                return None
            return self._level(window, lasting.usual, lasting.height, "no action was taken")
        return self._over(window)

    def _rolled_back(self, window: Window, event: Event) -> Finding:
        loss, usual = number(event, "loss"), number(event, "usual")
        steps, to, first = (number(event, name) for name in ("steps", "to", "first"))
        start = window.step if math.isnan(first) else int(first)
        finding = self.finding(
            window,
            f"rolled back {steps:.0f} steps to step {to:.0f}: loss {usual:.4g} -> {loss:.4g} since "
            f"step {start}, and the old weights do better",
            f"look at the batches and the learning rate{rate(window)} before step {start}: "
            "lengthen warm-up, clip with --clip-adaptive, or repair that data; --on OPT001=observe "
            "if the jump is intended",
            severity=Severity.ERROR,
            evidence={
                "key": "rollback",
                "spike_start": start,
                "peak": loss,
                "usual": usual,
                "tried": number(event, "tried"),
                "rolled_back": steps,
                "to": to,
                "lr_factor": number(event, "lr_factor"),
                "moments_reset": bool(event.data.get("moments_reset")),
                "left": number(event, "left"),
            },
        )
        return replace(finding, action="rollback")

    def _level(self, window: Window, before: float, after: float, why: str) -> Finding:
        return self.finding(
            window,
            f"the loss has a new level: {after:.4g}, {before:.4g} before ({why})",
            "nothing if the task or the data changes here (curriculum, new stage); otherwise "
            f"compare the batches before and after step {window.step}",
            severity=Severity.INFO,
            evidence={"key": "level", "before": before, "after": after},
        )

    def _stopped(self, window: Window, stop: Event) -> Finding:
        why = str(stop.data.get("why") or "the budget is spent")
        usual, loss = window.value("loss_usual"), window.value("loss")
        kept = stop.data.get("checkpoint") or "the last good checkpoint"
        finding = self.finding(
            window,
            f"loss {loss:.4g}, baseline {usual:.4g}, and no rollback is left ({why[:80]})",
            f"resume from {kept} with a lower learning rate{rate(window)}",
            severity=Severity.ERROR,
            evidence={"key": "stop", "usual": usual},
        )
        return replace(finding, action="stop")

    def _over(self, window: Window) -> Finding | None:
        high = spike(window)
        if high is None or high.applied < self.options.rows or not high.back:
            return None
        start = _step(window, int(high.rows[0]))
        if happened(window, "rollback", start):
            return None
        raised = self._raised(window, high)
        short = len(high.rows) <= self.options.short and high.clearness >= self.options.clear
        clear = ((short and not high.familiar) or high.times >= self.options.beyond) and not raised
        why = f"; the learning rate was raised {raised:.3g} times" if raised else ""
        return self.finding(
            window,
            f"the loss is back at {window.value('loss'):.4g} after {len(high.rows)} steps up to "
            f"{high.peak:.4g}, baseline {high.usual:.4g} (since step {start}){why}",
            f"look at the batches and the learning rate{rate(window)} right before step {start}: a "
            "longer warm-up or clipping (--clip-adaptive) keeps such updates small",
            severity=Severity.WARNING if clear else Severity.INFO,
            evidence={
                "spike_start": start,
                "spike_rows": len(high.rows),
                "peak": high.peak,
                "usual": high.usual,
                "limit": high.limit,
            },
        )

    def _raised(self, window: Window, high: Spike) -> float:
        """Factor by which the learning rate rose where the spike began; 0 if it did not."""
        mine: list[int] = window.mine.tolist()
        start = mine.index(int(high.rows[0]))
        around = mine[max(0, start - 16) : start + len(high.rows)]
        rates = [lr for lr in (window.value("lr", row) for row in around) if 0 < lr < math.inf]
        times = max(rates) / rates[0] if rates else 0.0
        return times if times >= self.options.restart else 0.0


def _new_level(window: Window) -> tuple[float, float, str] | None:
    """The loss before and after, where the guard says that it has a new level."""
    trial = event_at(window, "trial", verdict="data")
    if trial is not None:
        why = f"the weights from before have {number(trial, 'tried'):.4g} there too"
        return number(trial, "usual"), number(trial, "loss"), why
    level = event_at(window, "level")
    # A lower level is no spike, and the result of a trial has been reported already.
    if level is None or not number(level, "after") > number(level, "before"):
        return None
    if happened(window, "trial", level.step, verdict="data"):
        return None
    return number(level, "before"), number(level, "after"), "it stayed there"


def _step(window: Window, row: int) -> int:
    return int(window.rows["step"][row])

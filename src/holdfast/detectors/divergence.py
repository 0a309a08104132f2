"""OPT003: the run diverges; loss and gradient norm grow over many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..records.recovery import NewLossLevel, NewTask, RolledBack, RunStopped, TrialResult
from ..suspicion import NORM_GROWTH, wandered
from ..types import Finding, Severity
from ._events import (
    event_at,
    finite,
    happened,
    latest,
    nonfinite,
    nonfinite_story,
    not_comparable,
    rolled_back,
    rows_with_event,
    stopped,
)
from ._examples import rows
from ._outliers import rate
from ._window import (
    Mask,
    Window,
    column,
)
from .base import Detector

_UNDONE = RolledBack(
    opt=0, code="OPT003", why="loss", steps=9, to=4, loss=90.0, usual=2.0, tried=2.1, lr_factor=0.5,
    left=2,
)  # fmt: skip


class Divergence(Detector):
    """Divergence: loss and gradient norm grow over many steps, because updates are too large.

    What it detects:
        One of two patterns. The loss rose again soon after a rollback to good weights: other
        data, same result. Or loss and gradient norm rose far above what the run began with, over
        many steps, steadily or not, and no single batch stands out. Where losses cannot be
        compared over time, because the loop makes its own data or two optimizers train against
        each other, that is a warning and nothing is done.

    Why it matters:
        One bad batch is an accident; divergence comes back. Skipping steps or rolling back only
        delays it, and it ends in infinity or in a loss that never falls again. The learning rate
        decides, and has to change.

    Evidence:
        ``key``: ``rollback`` or ``stop`` for the action taken, none where there was none;
        ``how``: ``again`` or ``trend``; ``loss_before`` and ``norm_before`` with
        ``norm``; ``lr_before``, ``suggested_lr``; ``since``: the step it began at; with a
        rollback ``rolled_back`` steps, ``to``, ``tried``: the loss with the old weights,
        ``lr_factor``, ``left``: how many more are allowed.

    Usual causes:
        - The learning rate is too high for this batch size or this optimizer (a value for Adam
          given to SGD or the other way round), or without the warm-up it was made for.
        - A warm-up or a schedule that keeps rising; a resume that starts at the peak.
        - A loss that is a sum: its gradients grow with the batch, the learning rate does not.
        - Inputs or targets that are not normalised; an init that is too large.
        - Momentum near 1, or an ``eps`` of Adam so small that it amplifies noise.

    What to do:
        1. Lower the learning rate: ``suggested_lr`` is the value before the growth where the
           schedule was rising, otherwise a third of the present one.
        2. Lengthen the warm-up, or clip the norm (``--clip-norm`` with a few times
           ``norm_before``): clipping bounds the effect of one step.
        3. From the start: normalise inputs and targets, take the mean instead of the sum.

    False alarms:
        Both loss and norm have to grow: the loss to a hundred times the first level, the norm to
        thirty times its lowest. Growing rewards, or a generator that loses for a while, raise
        both by one order of magnitude. The bounds are guesses, checked against the noisy and the
        spiking scripts of the tests.

    Cost:
        None of its own: it reads columns that the guard measures on every step, one row in 16.

    Reproduce:
        ``holdfast run -m holdfast.faults.divergence`` lowers the learning rate that ruins
        ``python -m holdfast.faults.divergence``.
    """

    code = "OPT003"
    name = "divergence"
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where losses cannot be compared"),)
    needs = ("loss_baseline", "norm_baseline")
    since = "0.1"
    within = 96
    soon_after = "NUM005"
    fires = rows(8, _UNDONE)
    silent = rows(8, _UNDONE.replace(code="OPT001"))

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """How often to look; the bounds of growth are those that a rollback is decided by."""

        every: int = 16
        """Steps between two checks for growth; a guess."""
        again: int = 200
        """Steps after a rollback within which another one is divergence; a guess."""

    def suspects(self, window: Window) -> Mask:
        """One row in ``every``, and rows with an event."""
        regular = window.new["step"] % self.options.every == self.options.every - 1
        usual, norms = column(window.rows, "loss_baseline"), column(window.rows, "norm_baseline")
        # What no row before it could make growth of need not be looked at: most rows of a run.
        grown = usual > np.fmin.reduce(usual, initial=np.inf)
        with np.errstate(over="ignore"):
            grown &= norms >= NORM_GROWTH * np.fmin.reduce(norms, initial=np.inf)
        regular &= grown[len(window) - window.fresh :]
        return regular | rows_with_event(window, (RolledBack, RunStopped))

    def check(self, window: Window) -> Finding | None:
        """Report a rollback that did not help, else look for growth."""
        undone = event_at(window, RolledBack, lambda done: done.code == self.code)
        if undone is not None:
            return self._rolled_back(window, *undone)
        stop = stopped(self, window, _advice(window))
        if stop is not None:
            return stop
        regular = window.step % self.options.every == self.options.every - 1
        return self._grown(window) if regular else None

    def _rolled_back(self, window: Window, step: int, done: RolledBack) -> Finding:
        loss, usual, factor = done.loss, finite(done.usual), done.lr_factor
        lowered = f", learning rate times {factor:.3g}" if factor < 1 else ""
        again = happened(window, RolledBack, step - self.options.again, step)
        how = "again after a rollback" if again else "over many steps"
        story = f": loss {usual:.4g} -> {loss:.4g} {how}", _advice(window, lowered=factor)
        if nonfinite(done):
            story = nonfinite_story(done, window.step if done.first is None else done.first)
        return rolled_back(
            self,
            window,
            done,
            lowered + story[0],
            story[1],
            how="again" if again else "trend",
            loss_before=usual,
            suggested_lr=_lower(window, lowered=factor),
        )

    def _grown(self, window: Window) -> Finding | None:
        """Growth, steady or not: far above the lowest and the first known level."""
        own = window.own
        usual, norms = (column(window.rows, n)[own] for n in ("loss_baseline", "norm_baseline"))
        # Growth is measured within what is being learned, not from one task to the next; where
        # older weights were tried and have the same loss, the data has changed. A loss that jumped
        # and stayed is a new level, from which the training process measures growth as well.
        began = max(
            latest(window, NewTask),
            latest(window, TrialResult, lambda trial: trial.verdict == "data"),
            latest(window, NewLossLevel),
        )
        same_task = window.rows["step"][own] > began
        known = np.isfinite(usual) & np.isfinite(norms) & same_task
        own, usual, norms = own[known], usual[known].tolist(), norms[known].tolist()
        if not usual or own[-1] != len(window) - 1:
            return None
        lowest = len(usual) - 1 - usual[::-1].index(min(usual))
        start = max(abs(usual[0]), abs(usual[lowest]))
        if not wandered(usual[-1], usual[lowest], start, norms[-1], min(norms)):
            return None
        rows, doubt = own[lowest:], not_comparable(window)
        since, before = int(window.rows["step"][rows[0]]), window.value("lr", int(rows[0]))
        return self.finding(
            window,
            f"loss {usual[lowest]:.4g} -> {usual[-1]:.4g} and gradient norm {norms[lowest]:.4g} -> "
            f"{norms[-1]:.4g}, growing over {len(rows)} steps since step {since}"
            f"{f'; nothing was done, because {doubt}' if doubt else ''}",
            _advice(window, before)
            + (f"; --on {self.code}=rollback,lower_lr lets holdfast do so" if doubt else ""),
            severity=Severity.WARNING if doubt else self.severity,
            evidence={
                "how": "trend",
                "since": since,
                "loss_before": usual[lowest],
                "norm_before": norms[lowest],
                "norm": norms[-1],
                "lr_before": before,
                "suggested_lr": _lower(window, before),
            },
        )


def _lower(window: Window, before: float = math.nan, lowered: float = math.nan) -> float:
    """Learning rate to try: the one holdfast uses now, the one before a rise, else a third."""
    lr = window.value("lr")
    if 0 < lowered < 1:
        return lr * lowered
    return before if 0 < before <= lr / 1.5 else lr / 3


def _advice(window: Window, before: float = math.nan, lowered: float = math.nan) -> str:
    lower = _lower(window, before, lowered)
    to = f" to {lower:.2g}" if 0 < lower < math.inf else " to a third"
    return (
        f"lower the learning rate{rate(window)}{to} or lengthen warm-up; clip the norm "
        "(--clip-norm) if single steps are too large"
    )

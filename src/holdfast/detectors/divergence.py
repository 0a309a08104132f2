"""OPT003: the run diverges; loss and gradient norm grow over many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import Event, Finding, Severity
from ._events import (
    event_at,
    happened,
    number,
    rows_with_event,
)
from ._outliers import rate
from ._window import (
    HISTORY,
    Mask,
    Window,
    column,
)
from .base import Detector
from .suspicion import LOSS_GROWTH, wandered


class Divergence(Detector):
    """Divergence: loss and gradient norm grow over many steps, because updates are too large.

    What it detects:
        One of three patterns. The loss rose again soon after a rollback to good weights: other
        data, same result (error). Or loss and gradient norm rose over ``blocks`` blocks of
        ``block`` steps, each block above the one before, by a factor of ``times``, or unsteadily
        by factors of ``grown`` and ``wide``, and no single batch stands out (error). Or, in the
        first ``early`` steps, before the run has a baseline, the loss rose on each of the last
        ``rising`` steps to ``grown`` times its first value, and the norms with it (warning).

    Why it matters:
        One bad batch is an accident; divergence comes back. Skipping steps or rolling back only
        delays it, and it ends in infinity or in a loss that never falls again. The learning rate
        decides, and has to change.

    Evidence:
        ``key``: ``rollback`` or ``stop`` for the action taken, none where there was none;
        ``how``: ``again``, ``trend`` or ``start``; ``loss_before`` and ``norm_before`` with
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
        Both loss and norm have to grow: tenfold within 80 steps, in every block, the loss also by
        ten times the rise that counts as a spike; or to a hundred times the first level and
        thirty times the lowest norm. Growing rewards, or a generator that loses for a while,
        raise both by one order of magnitude. The bounds are guesses, checked against the noisy
        and the spiking scripts of the tests.

    Cost:
        None of its own: it reads columns that the guard measures on every step, one row in 16.

    Reproduce:
        ``holdfast run -m holdfast.faults.divergence`` lowers the learning rate that ruins
        ``python -m holdfast.faults.divergence``.
    """

    code = "OPT003"
    name = "divergence"
    severity = Severity.ERROR
    needs = ("loss", "grad_norm")
    since = "0.1"
    within = 96

    @dataclass(frozen=True, kw_only=True)
    class Options(Detector.Options):
        """What counts as growth; guesses, see *False alarms*."""

        block: int = 16
        blocks: int = 5
        times: float = 10.0
        again: int = 200
        early: int = 20
        rising: int = 5
        grown: float = LOSS_GROWTH

    def suspects(self, window: Window) -> Mask:
        """One row in ``block``, rows before there is a baseline, and rows with an event."""
        rows = window.new
        unknown = np.isnan(column(rows, "loss_usual"))
        # Only a run that is still short can be at its start.
        start = unknown & (len(window) < HISTORY)
        regular = rows["step"] % self.options.block == self.options.block - 1
        return regular | start | rows_with_event(window, ("rollback", "stop"))

    def check(self, window: Window) -> Finding | None:
        """Report a rollback that did not help, else look for growth."""
        undone = event_at(window, "rollback", code=self.code)
        if undone is not None:
            return self._rolled_back(window, undone)
        stop = event_at(window, "stop", code=self.code)
        if stop is not None:
            return self._stopped(window, stop)
        mine = window.mine
        mine = mine[np.isfinite(column(window.rows, "loss")[mine])]
        mine = mine[np.isfinite(column(window.rows, "grad_norm")[mine])]
        if not mine.size or mine[-1] != len(window) - 1:
            return None
        if math.isnan(window.value("loss_usual")):
            short = len(window) < HISTORY and mine.size <= self.options.early
            return self._start(window, mine) if short else None
        regular = window.step % self.options.block == self.options.block - 1
        return self._trend(window, mine) if regular else None

    def _rolled_back(self, window: Window, event: Event) -> Finding:
        loss, usual = number(event, "loss"), number(event, "usual")
        steps, to, factor = (number(event, name) for name in ("steps", "to", "lr_factor"))
        lowered = f", learning rate times {factor:.3g}" if factor < 1 else ""
        again = happened(window, "rollback", event.step - self.options.again, event.step)
        how = "again after a rollback" if again else "over many steps"
        finding = self.finding(
            window,
            f"rolled back {steps:.0f} steps to step {to:.0f}{lowered}: loss {usual:.4g} -> "
            f"{loss:.4g} {how}",
            _advice(window, lowered=factor),
            severity=Severity.ERROR,
            evidence={
                "key": "rollback",
                "how": "again" if again else "trend",
                "loss_before": usual,
                "suggested_lr": _lower(window, lowered=factor),
                "tried": number(event, "tried"),
                "rolled_back": steps,
                "to": to,
                "lr_factor": factor,
                "left": number(event, "left"),
            },
        )
        return replace(finding, action="rollback")

    def _stopped(self, window: Window, stop: Event) -> Finding:
        kept = str(stop.data.get("checkpoint") or "the last good checkpoint")
        why = str(stop.data.get("why") or "the budget is spent")
        finding = self.finding(
            window,
            f"loss {window.value('loss'):.4g}, baseline {window.value('loss_usual'):.4g}: rolling "
            f"back does not help ({why[:80]})",
            f"resume from {kept} and {_advice(window)}",
            severity=Severity.ERROR,
            evidence={"key": "stop", "how": "again", "suggested_lr": _lower(window)},
        )
        return replace(finding, action="stop")

    def _trend(self, window: Window, mine: NDArray[np.intp]) -> Finding | None:
        block, blocks = self.options.block, self.options.blocks
        if mine.size < block * blocks:
            return None
        recent = mine[-block * blocks :]
        span = recent.reshape(blocks, block)
        losses, norms = (_medians(window, name, span) for name in ("loss", "grad_norm"))
        usual, limit = (window.value(n, int(span[0, -1])) for n in ("loss_usual", "loss_limit"))
        # Ten times what it was, and ten times the rise that counts as a spike in this run; without
        # a baseline (NaN) the comparison is false, and there is no finding.
        least = max((self.options.times - 1) * abs(losses[0]), self.options.times * (limit - usual))
        growing = bool(np.all(np.diff(losses) > 0) and np.all(np.diff(norms) > 0))
        far_up = losses[-1] - losses[0] >= least and norms[-1] >= self.options.times * norms[0]
        if growing and far_up:
            return self._grown(window, "trend", recent, losses, norms)
        return self._wandered(window, mine)

    def _wandered(self, window: Window, mine: NDArray[np.intp]) -> Finding | None:
        """Unsteady growth: far above the lowest and the first known level."""
        usual, norms = (_values(window, name, mine) for name in ("loss_usual", "norm_usual"))
        known = np.flatnonzero(np.isfinite(usual) & np.isfinite(norms))
        if not known.size:
            return None
        lowest = int(known[np.argmin(usual[known])])
        start = float(max(abs(usual[known[0]]), abs(usual[lowest])))
        if not wandered(usual[-1], usual[lowest], start, norms[-1], norms[known].min()):
            return None
        return self._grown(window, "trend", mine[lowest:], usual[lowest:], norms[lowest:])

    def _start(self, window: Window, mine: NDArray[np.intp]) -> Finding | None:
        rising = self.options.rising
        if mine.size <= rising:
            return None
        losses, norms = (_values(window, name, mine) for name in ("loss", "grad_norm"))
        falls = np.flatnonzero(np.diff(losses) <= 0)
        start = int(falls[-1]) + 1 if falls.size else 0
        if mine.size - 1 - start < rising:
            return None
        before = float(np.abs(losses[: start + 1]).max())
        growing = np.diff(norms[start:]) > 0
        if not (before > 0 and losses[-1] >= self.options.grown * before):
            return None
        # A norm may waver once while the loss does not.
        if growing.sum() < growing.size - 1 or not norms[-1] >= self.options.times * norms[start]:
            return None
        return self._grown(window, "start", mine[start:], losses[start:], norms[start:])

    def _grown(
        self, window: Window, how: str, rows: NDArray[np.intp], losses: Any, norms: Any
    ) -> Finding:
        """Losses and norms that grow from the first to the last of ``rows``."""
        since, before = int(window.rows["step"][rows[0]]), window.value("lr", int(rows[0]))
        return self.finding(
            window,
            f"loss {losses[0]:.4g} -> {losses[-1]:.4g} and gradient norm {norms[0]:.4g} -> "
            f"{norms[-1]:.4g}, growing over {len(rows)} steps since step {since}",
            _advice(window, before),
            severity=Severity.WARNING if how == "start" else self.severity,
            evidence={
                "how": how,
                "since": since,
                "loss_before": float(losses[0]),
                "norm_before": float(norms[0]),
                "norm": float(norms[-1]),
                "lr_before": before,
                "suggested_lr": _lower(window, before),
            },
        )


def _values(window: Window, name: str, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    return column(window.rows, name)[rows].astype(np.float64)


def _medians(window: Window, name: str, span: NDArray[np.intp]) -> NDArray[np.float64]:
    """The median of each block of rows."""
    return np.median(_values(window, name, span), axis=1)


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

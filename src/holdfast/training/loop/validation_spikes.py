"""Validation spikes: a metric far above its best so far is said, and undone where asked for."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...records.trainer import ValidationSpike
from ...watching.watch import Watch
from .stopping import BestSoFar
from .validation import ValidationSettings


class ValidationSpikes:
    """Looks at every validation; of metrics that are positive and get smaller.

    Args:
        settings: how far above the best is a spike, and what is done about one.
        best_so_far: the best validation so far.
        watch: restores the best state, and records events.
        say: where the warning goes.
    """

    def __init__(
        self,
        settings: ValidationSettings,
        best_so_far: BestSoFar,
        watch: Watch,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._best_so_far = settings, best_so_far
        self._watch, self._say = watch, say
        self._high = False

    def look(self, step: int, metric: str, value: float) -> bool:
        """Warn of a spike, once while it lasts; True if the best state was restored."""
        best, limit = self._best_so_far.best, self._settings.spike
        judged = limit > 0 and self._best_so_far.less_is_better and best > 0
        before, self._high = self._high, judged and not value <= limit * best
        if not self._high:
            return False
        back = self._settings.spike_action == "rollback"
        if before and not back:
            return False
        times = f"{value / best:.3g} times" if math.isfinite(value) else "far from"
        what = (
            f"validation {metric} {value:.4g} is {times} its best, {best:.4g} at step "
            f"{self._best_so_far.best_step}"
        )
        why_not = self._watch.restore_best(what) if back else ""
        restored = back and not why_not
        if not restored:  # the guard itself says what it has restored
            refused = f"; the best state was not restored: {why_not}" if why_not else ""
            self._say(
                f"step {step}: {what}{refused}; resume the best state (--resume best) with a "
                "lower train.optimizer.lr or train.clip"
            )
        spike = ValidationSpike(
            metric=metric,
            value=value,
            best=best,
            best_step=self._best_so_far.best_step,
            restored=restored,
            why_not=why_not,
        )
        self._watch.note(spike.kind, spike.to_dict())
        return restored

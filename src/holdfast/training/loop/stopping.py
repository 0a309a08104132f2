"""Whether a validation was the best so far, and whether it is time to give up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from ...config import Section, bounded
from ...errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class StopSettings(Section):
    """What counts as better, and how long to wait for it."""

    metric: str = "loss"  # of the validation
    mode: Literal["min", "max"] = "min"
    patience: int = bounded(0, 0)  # validations without a better one; 0: never stop early
    least: float = bounded(0.0, 0.0)  # a smaller change is no improvement


class BestSoFar:
    """The best validation so far; part of every checkpoint."""

    def __init__(self, settings: StopSettings) -> None:
        self._settings = settings
        self.best = math.nan
        self.best_step = 0
        self.without = 0
        """Validations since the best one."""

    def validated(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether this is the best one yet; what is not finite never is."""
        wanted = self._settings.metric
        if wanted not in values:
            known = ", ".join(sorted(values)) or "nothing"
            raise UsageError(
                f"stop.metric is {wanted!r}, but validation at step {step} gave {known}; "
                "set stop.metric to one of them"
            )
        value = values[wanted]
        better = math.isfinite(value) and (math.isnan(self.best) or self._gain(value) > 0)
        if better:
            self.best, self.best_step, self.without = value, step, 0
        else:
            self.without += 1
        return better

    def _gain(self, value: float) -> float:
        gain = self.best - value if self.less_is_better else value - self.best
        return gain - self._settings.least

    @property
    def less_is_better(self) -> bool:
        """Whether the metric falls when the model gets better."""
        return self._settings.mode == "min"

    @property
    def why_stop(self) -> str:
        """Why it is time to stop; empty while it is not."""
        settings = self._settings
        if not settings.patience or self.without < settings.patience:
            return ""
        return (
            f"{self.without} validations without a better {settings.metric} than "
            f"{self.best:.4g} at step {self.best_step} (stop.patience {settings.patience})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "best": self.best,
            "best_step": self.best_step,
            "without": self.without,
            "by": [self._settings.metric, self._settings.mode],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; a best by another metric is none."""
        if list(state["by"]) != [self._settings.metric, self._settings.mode]:
            return
        self.best = float(state["best"])
        self.best_step, self.without = int(state["best_step"]), int(state["without"])

"""Rules by name: those of spike timing, and here those that look at firing rates.

B batch, T tokens, K inputs, U outputs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from holdfast import HoldfastError

from .timing import PairRule, RuleParameters, TripletRule, WeightChange


class HomeostaticRule(PairRule):
    """Pairs, and fast weights that are scaled until a unit has ``target_rate`` events per token.

    The scaling acts with ``eta_rate`` on rates averaged over ``tau_rate`` tokens. Further options
    are those of ``PairRule``.
    """

    rate_U: Tensor

    def __init__(
        self,
        *options: Any,
        target_rate: float = 0.1,
        eta_rate: float = 1e-3,
        tau_rate: float = 1000.0,
        **more: Any,
    ) -> None:
        super().__init__(*options, **more)
        self.target_rate, self.eta_rate, self.tau_rate = target_rate, eta_rate, tau_rate
        self.register_buffer("rate_U", torch.full((self.units,), target_rate))

    def advance(self, post_BTU: Tensor, allowed: Tensor) -> None:
        """Average the rates."""
        _follow(self.rate_U, post_BTU.mean((0, 1)), post_BTU.shape[1] / self.tau_rate, allowed)

    def change(
        self, pre_BTK: Tensor, post_BTU: Tensor, fast_UK: Tensor, now: RuleParameters
    ) -> WeightChange:
        """Pairs are plus and minus, the scaling is other."""
        excess_U1 = (self.rate_U - self.target_rate).unsqueeze(1)
        pairs = super().change(pre_BTK, post_BTU, fast_UK, now)
        return pairs._replace(other_UK=-self.eta_rate * excess_U1 * fast_UK)


class BCMRule(PairRule):
    """Bienenstock, Cooper & Munro: rates above a sliding threshold strengthen, below they weaken.

    It starts at ``threshold`` and follows the squared rate over ``tau_threshold`` tokens. A rule of
    rates has no pairs: of the ``RuleParameters`` only eta acts.
    """

    start = RuleParameters(eta=0.001)
    threshold_U: Tensor

    def __init__(self, *options: Any, threshold: float = 0.1, tau_threshold: float = 1e3) -> None:
        super().__init__(*options)
        self.tau_threshold = tau_threshold
        self.register_buffer("threshold_U", torch.full((self.units,), threshold))

    def advance(self, post_BTU: Tensor, allowed: Tensor) -> None:
        """Move the thresholds."""
        square_U = post_BTU.mean(1).square().mean(0)
        _follow(self.threshold_U, square_U, post_BTU.shape[1] / self.tau_threshold, allowed)

    def change(
        self, pre_BTK: Tensor, post_BTU: Tensor, fast_UK: Tensor, now: RuleParameters
    ) -> WeightChange:
        """Everything is other."""
        x_BK, y_BU = pre_BTK.mean(1), post_BTU.mean(1)
        drive_BU = y_BU * (y_BU - self.threshold_U)
        none_UK = torch.zeros_like(fast_UK)
        return WeightChange(none_UK, none_UK, drive_BU.T @ x_BK / len(x_BK), none_UK, none_UK)


def _follow(average_U: Tensor, value_U: Tensor, time: float, allowed: Tensor) -> None:
    """Exponential average in place, after ``time`` in units of its time constant."""
    moved_U = average_U.lerp(value_U, -math.expm1(-time))
    average_U.copy_(torch.where(allowed, moved_U, average_U))


RULES = {
    "classical": PairRule,
    "triplet": TripletRule,
    "homeostatic": HomeostaticRule,
    "bcm": BCMRule,
}

# Minimal all-to-all set that Pfister & Gerstner fitted to visual cortex, and options to go with it.
VISUAL_CORTEX = RuleParameters(tau_plus=16.8, tau_minus=33.7, a_plus=0.0, a_minus=7.1e-3)
VISUAL_CORTEX_TRIPLETS = {"a3_plus": 6.5e-3, "a3_minus": 0.0, "tau_y": 114.0}


def make_rule(name: str, units: int, lower: float, upper: float, **options: Any) -> PairRule:
    """The rule object of one layer."""
    if name not in RULES:
        raise HoldfastError(f"stdp-type is {name!r}; choose one of {', '.join(RULES)}.")
    return RULES[name](units, lower, upper, **options)

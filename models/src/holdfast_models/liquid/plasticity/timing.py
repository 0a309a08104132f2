"""Rules of spike timing: what pairs and triplets of spikes say about the fast weights of a layer.

Every rule is a few matrix products over all tokens; the memory of past spikes is a ``scan``.

B batch, T tokens, K inputs, U outputs. Events may be rates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..scan import scan


class RuleParameters(NamedTuple):
    """What tunes a rule; meta-plasticity sets it per layer."""

    eta: Tensor | float = 0.01
    tau_plus: Tensor | float = 20.0
    tau_minus: Tensor | float = 20.0
    a_plus: Tensor | float = 0.005
    a_minus: Tensor | float = 0.00525


class WeightChange(NamedTuple):
    """Parts of dW, and its derivatives with respect to both tau (0 unless asked for)."""

    plus_UK: Tensor
    minus_UK: Tensor
    other_UK: Tensor
    by_tau_plus_UK: Tensor
    by_tau_minus_UK: Tensor

    def total(self, now: RuleParameters) -> Tensor:
        """The whole dW; fast weights move by ``eta`` times this."""
        return now.a_plus * self.plus_UK - now.a_minus * self.minus_UK + self.other_UK


def past_trace(
    events_BTF: Tensor, tau: Tensor | float, slope: bool = False
) -> tuple[Tensor, Tensor]:
    """Sum of exp(-age / tau) over strictly past events, and its derivative with respect to tau.

    The recurrence is x_t = d (x_{t-1} + event_{t-1}) with d = exp(-1/tau); the derivative obeys the
    same one, driven by x_t / tau^2.
    """
    tau = tau if isinstance(tau, Tensor) else events_BTF.new_full((), tau)
    decay = torch.exp(-1.0 / tau)
    x_BTF = scan(decay, decay * nn.functional.pad(events_BTF[:, :-1], (0, 0, 1, 0)))
    return x_BTF, scan(decay, x_BTF / tau.square()) if slope else torch.zeros_like(x_BTF)


def correlation(post_BTU: Tensor, pre_BTK: Tensor) -> Tensor:
    """Mean over batch and time of post times pre, (U, K)."""
    post_NU, pre_NK = post_BTU.flatten(0, 1), pre_BTK.flatten(0, 1)
    return post_NU.T @ pre_NK / len(pre_NK)


class PairRule(nn.Module):
    """Classical spike timing (Bi & Poo): post after pre strengthens, pre after post weakens.

    The rule of one layer, whose fast weights lie in [lower, upper]. ``softness`` is mu of the soft
    bounds, 0 (additive) to 1: strengthening fades as ``(upper - w)^mu``, weakening as
    ``(w - lower)^mu``. With ``slopes`` a change has its derivatives with respect to both tau.
    """

    slopes = False
    start = RuleParameters()

    def __init__(
        self, units: int, lower: float = -1.0, upper: float = 1.0, *, softness: float = 0.0
    ) -> None:
        super().__init__()
        self.units, self.lower, self.upper, self.softness = units, lower, upper, softness

    def advance(self, post_BTU: Tensor, allowed: Tensor) -> None:
        """Bring running averages of the units up to date where ``allowed``, if the rule has any."""

    def change(
        self, pre_BTK: Tensor, post_BTU: Tensor, fast_UK: Tensor, now: RuleParameters
    ) -> WeightChange:
        """Pairs are plus and minus; triplets, in the rule that counts them, are other."""
        pre_trace_BTK, pre_slope_BTK = past_trace(pre_BTK, now.tau_plus, self.slopes)
        post_trace_BTU, post_slope_BTU = past_trace(post_BTU, now.tau_minus, self.slopes)
        up_UK = (self.upper - fast_UK).clamp(min=0.0) ** self.softness
        down_UK = (fast_UK - self.lower).clamp(min=0.0) ** self.softness
        plus_UK = up_UK * correlation(post_BTU, pre_trace_BTK)
        minus_UK = down_UK * correlation(post_trace_BTU, pre_BTK)
        other_UK = by_plus_UK = by_minus_UK = torch.zeros_like(fast_UK)
        at_post_BTU, at_pre_BTK = now.a_plus * post_BTU, now.a_minus * pre_BTK
        triplets = self._triplets(pre_BTK, post_BTU)
        if triplets is not None:
            at_post_BTU, at_pre_BTK = at_post_BTU + triplets[0], at_pre_BTK + triplets[1]
            strengthening_UK = up_UK * correlation(triplets[0], pre_trace_BTK)
            other_UK = strengthening_UK - down_UK * correlation(post_trace_BTU, triplets[1])
        if self.slopes:
            by_plus_UK = up_UK * correlation(at_post_BTU, pre_slope_BTK)
            by_minus_UK = -down_UK * correlation(post_slope_BTU, at_pre_BTK)
        return WeightChange(plus_UK, minus_UK, other_UK, by_plus_UK, by_minus_UK)

    def _triplets(self, pre_BTK: Tensor, post_BTU: Tensor) -> tuple[Tensor, Tensor] | None:
        """Post and pre events weighed by slow traces of their own kind; None: only pairs count."""
        return None


class TripletRule(PairRule):
    """Pfister & Gerstner: triplets make the outcome depend on the firing rate.

    Post-pre-post strengthens by ``a3_plus``, pre-post-pre weakens by ``a3_minus``; slow traces of
    pre and post last ``tau_x`` and ``tau_y``. Further options are those of ``PairRule``.
    """

    def __init__(
        self,
        *options: Any,
        a3_plus: float = 1e-4,
        a3_minus: float = 1e-4,
        tau_x: float = 101.0,
        tau_y: float = 114.0,
        **more: Any,
    ) -> None:
        super().__init__(*options, **more)
        self.a3_plus, self.a3_minus, self.tau_x, self.tau_y = a3_plus, a3_minus, tau_x, tau_y

    def _triplets(self, pre_BTK: Tensor, post_BTU: Tensor) -> tuple[Tensor, Tensor] | None:
        slow_pre_BTK = past_trace(pre_BTK, self.tau_x)[0]
        slow_post_BTU = past_trace(post_BTU, self.tau_y)[0]
        return self.a3_plus * post_BTU * slow_post_BTU, self.a3_minus * pre_BTK * slow_pre_BTK

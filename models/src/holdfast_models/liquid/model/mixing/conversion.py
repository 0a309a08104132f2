"""Turns spikes into the input of the state-space block; causal in every method.

Shape suffixes: B batch, T tokens, K spiking units, H width, W window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import HoldfastError

from ...scan import scan
from ..linear import he_linear
from ..precision import full_precision

METHODS = ("rate", "temporal", "potential")


class RecentRates(NamedTuple):
    """Rates of the last W - 1 tokens, zeros before the first, and how many tokens there were."""

    tail_BWK: Tensor
    seen_B: Tensor


ConversionState = RecentRates | Tensor | tuple[()]


class SpikesToMamba(nn.Module):
    """Smooths rates over past tokens, or takes the membrane, and maps them to the width.

        convert = SpikesToMamba("temporal", units=32, width=64)
        y_BTH, state = convert(rate_BTK, membrane_BTK)

    Args:
        method: "rate" is the mean of the last ``window`` tokens (of as many as there are),
            "temporal" an exponential trace of time constant ``tau``, "potential" the membrane.
        units: K.
        width: H.
        tau: of "temporal", in tokens.
        window: of "rate", in tokens.
    """

    def __init__(
        self, method: str, units: int, width: int, tau: float = 20.0, window: int = 10
    ) -> None:
        super().__init__()
        if method not in METHODS or tau <= 0.0 or window < 1:
            raise HoldfastError(
                f"conversion of spikes by {method!r}, tau {tau:g} and window {window} tokens; "
                f"choose {', '.join(METHODS)}, a tau above 0 and a window of at least 1"
            )
        self.method, self.window = method, window
        self.decay = math.exp(-1.0 / tau)
        self.proj = he_linear(units, width)

    def forward(
        self, rate_BTK: Tensor, membrane_BTK: Tensor, state: ConversionState | None = None
    ) -> tuple[Tensor, ConversionState]:
        """The input of the state-space block, and what the method remembers."""
        if self.method == "potential":
            return self.proj(membrane_BTK), ()
        rate_BTK = full_precision(rate_BTK)
        if self.method == "temporal":
            assert state is None or isinstance(state, Tensor)
            trace_BTK = scan(self.decay, (1.0 - self.decay) * rate_BTK, state)
            return self.proj(trace_BTK), trace_BTK[:, -1]
        batch, tokens, units = rate_BTK.shape
        if state is None:
            tail_BWK = rate_BTK.new_zeros(batch, self.window - 1, units)
            state = RecentRates(tail_BWK, rate_BTK.new_zeros(batch, dtype=torch.long))
        assert isinstance(state, RecentRates)
        whole_BTK = torch.cat((state.tail_BWK, rate_BTK), dim=1)
        mean_BKT = functional.avg_pool1d(whole_BTK.transpose(1, 2), self.window, stride=1)
        place_T = torch.arange(1, tokens + 1, device=rate_BTK.device)
        available_BT = (state.seen_B[:, None] + place_T).clamp(max=self.window)
        mean_BTK = mean_BKT.transpose(1, 2) * self.window / available_BT[..., None]
        return self.proj(mean_BTK), RecentRates(whole_BTK[:, tokens:], state.seen_B + tokens)

"""Mamba beside the liquid cell of a block, and how the two are put together.

B batch, T tokens, H width, U liquid units, K spiking units, G heads of a gate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..settings import ModelSettings
from .linear import he_linear
from .mamba.mamba import Mamba
from .mixing.conversion import SpikesToMamba
from .mixing.cross_attention import CrossAttention
from .mixing.feedback import MambaToLiquid, MambaToSpikes
from .mixing.gate import AdaptiveGate
from .spiking.encoder import Encoded

Liquid = Callable[[Any, Tensor | None], tuple[Tensor, Any]]
"""``liquid(state, scale_BTU)``: the liquid cell of the block on what drives it."""


class Sent(NamedTuple):
    """What a block tells the next one beside its output."""

    mamba_BTH: Tensor | None = None
    """Output of Mamba, which scales the time constants of the next liquid cell."""
    current_BTK: Tensor | None = None
    """Added to the current of the next encoder."""


class Mixed(NamedTuple):
    """What both paths make together."""

    y_BTH: Tensor
    liquid_BTU: Tensor
    sent: Sent
    opening_BTG: Tensor | None = None


class MambaPath(nn.Module):
    """One of the three ways in which Mamba and the liquid cell meet.

    What nothing depends on is not built: it would never get a gradient.

    Args:
        settings: of the model.
        first: no Mamba before it scales the time constants of this block.
        last: nobody reads what it sends.
    """

    def __init__(self, settings: ModelSettings, *, first: bool, last: bool) -> None:
        super().__init__()
        mamba, width, units = settings.mamba, settings.hidden_dim, settings.liquid_units
        self.settings = mamba
        both = mamba.mode == "bidirectional"
        self.to_width = he_linear(units, width)
        self.liquid_norm = nn.LayerNorm(width)
        self.norm = nn.LayerNorm(width)
        self.mamba = Mamba(
            width,
            state=mamba.state,
            conv=mamba.conv,
            expand=mamba.expand,
            kind=mamba.kind,
            form=mamba.form,
            liquid_units=units if both else None,
        )
        self.conversion: SpikesToMamba | None = None
        self.gate: AdaptiveGate | None = None
        self.cross: CrossAttention | None = None
        self.to_tau: MambaToLiquid | None = None
        self.to_spikes: MambaToSpikes | None = None
        if mamba.mode != "sequential":
            self.conversion = SpikesToMamba(
                mamba.conversion, settings.spiking_units, width, tau=mamba.tau
            )
            if mamba.gate:
                self.gate = AdaptiveGate(width, mamba.gate_heads)
            else:
                self.mix = nn.Parameter(torch.zeros(()))  # sigmoid: half of each at the start
        if both and (mamba.exchange == "two_pass" or not first):
            self.to_tau = MambaToLiquid(width, units)
        if both and mamba.cross_attention:
            self.cross = CrossAttention(units, width, mamba.cross_heads)
        if mamba.feedback and not last:
            self.to_spikes = MambaToSpikes(width, settings.spiking_units)

    def tau_scale(self, m_BTH: Tensor | None) -> Tensor | None:
        """From 0.5 to 1.5 times the time constants; 1 at the start."""
        return None if m_BTH is None or self.to_tau is None else self.to_tau(m_BTH)

    def forward(
        self,
        l_BTU: Tensor,
        encoded: Encoded,
        liquid: Liquid,
        old: dict[str, Any],
        new: dict[str, Any],
    ) -> Mixed:
        """Both paths and what they send; states are read from ``old`` and left in ``new``."""
        settings, both = self.settings, self.settings.mode == "bidirectional"
        if self.conversion is None:
            inner_BTH = self.liquid_norm(self.to_width(l_BTU))
        else:
            inner_BTH, new["conversion"] = self.conversion(
                encoded.rate_BTK, encoded.membrane_BTK, old.get("conversion")
            )
        m_BTH, new["mamba"] = self.mamba(
            self.norm(inner_BTH), old.get("mamba"), liquid_BTU=l_BTU if both else None
        )
        current_BTK = None if self.to_spikes is None else self.to_spikes(m_BTH)
        if both and settings.exchange == "two_pass":
            l_BTU, new["again"] = liquid(old.get("again"), self.tau_scale(m_BTH))
            sent = Sent(None, current_BTK)
        else:
            sent = Sent(m_BTH if both else None, current_BTK)
        if self.conversion is None:
            return Mixed(m_BTH, l_BTU, sent)
        seen_BTU = l_BTU
        if self.cross is not None:
            seen_BTU, m_BTH, new["cross"] = self.cross(l_BTU, m_BTH, old.get("cross"))
        lh_BTH = self.liquid_norm(self.to_width(seen_BTU))
        if self.gate is not None:
            mixed_BTH, opening_BTG = self.gate(lh_BTH, m_BTH)
            return Mixed(mixed_BTH, l_BTU, sent, opening_BTG)
        share = self.mix.sigmoid()
        return Mixed(share * lh_BTH + (1 - share) * m_BTH, l_BTU, sent)

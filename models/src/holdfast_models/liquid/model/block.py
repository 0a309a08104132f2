"""One block: spikes, a liquid cell, Mamba where it is on, and how they are put together.

B batch, T tokens, H width, U liquid units, K spiking units, S spike steps, G heads of a gate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..plasticity.synapses import PlasticLinear
from ..settings import ModelSettings, PlasticitySettings
from .linear import he_linear, residual_linear
from .liquid.make import make_liquid
from .mamba_path import MambaPath, Sent
from .norms import normed
from .spiking.decoders import SpikeDecoder
from .spiking.encoder import SpikeEncoder

_MEMBRANE = 0.1  # share of the normalised membrane in what the liquid cell gets
_DECODED = 0.1  # share of the decoded spike train in what a block gives


class Inside(NamedTuple):
    """What happened in a block, for records, pictures and penalties."""

    rate_BTK: Tensor
    near: tuple[Tensor, Tensor]
    """Of each stage, in parts: the share of units so near the threshold that the surrogate lets a
    gradient through."""
    liquid_BTU: Tensor
    driven_BTU: Tensor
    """What drives the liquid cell."""
    opening_BTG: Tensor | None = None
    """Of the gate: 1 is all liquid, 0 all Mamba."""


class PlainFusion(nn.Module):
    """Liquid states and spikes together, and the residual, without Mamba."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        width = settings.hidden_dim
        self.fuse = residual_linear(settings.liquid_units + settings.spiking_units, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(settings.dropout)
        self.adds = settings.residual == "addition"
        if self.adds:
            self.gate = he_linear(width, width)
        else:
            self.joined = he_linear(2 * width, width)
            self.joined_norm = nn.LayerNorm(width)

    def forward(self, x_BTH: Tensor, l_BTU: Tensor, s_BTK: Tensor) -> Tensor:
        """The output of the block."""
        fused_BTH = self.fuse(torch.cat((l_BTU, s_BTK), -1))
        y_BTH = self.dropout(normed(self.norm, fused_BTH, gelu=True))
        if self.adds:
            return torch.addcmul(y_BTH, self.gate(x_BTH).sigmoid(), x_BTH)
        joined_BTH = self.joined(torch.cat((y_BTH, x_BTH), -1))
        return normed(self.joined_norm, joined_BTH, gelu=True)


class Block(nn.Module):
    """Pre-norm and residual.

    Args:
        settings: of the model.
        first: of all blocks.
        last: of all blocks.
        plasticity: whether and how the synapses onto the liquid cell have fast weights.
    """

    def __init__(
        self, settings: ModelSettings, plasticity: PlasticitySettings, *, first: bool, last: bool
    ) -> None:
        super().__init__()
        width, units, spiking = settings.hidden_dim, settings.liquid_units, settings.spiking_units
        spikes = settings.spikes
        steps = 1 if spikes.persist else spikes.steps
        self.norm = nn.LayerNorm(width)
        self.encoder = SpikeEncoder(
            width,
            spiking,
            steps=steps,
            dropout=spikes.dropout,
            persist=spikes.persist,
            **lif_options(settings),
        )
        self.membrane_norm = nn.LayerNorm(spiking)
        # The synapses are there with and without plasticity: on and off differ in nothing else.
        self.synapses = (
            PlasticLinear(spiking, units, plasticity.bound, plasticity.non_negative)
            if plasticity.on
            else he_linear(spiking, units)
        )
        self.liquid = make_liquid(settings.liquid_backbone, units, units)
        self.decoder = (
            SpikeDecoder(spikes.decode_method, spiking, steps, width)
            if spikes.decode_method != "none"
            else None
        )
        self.dropout = nn.Dropout(settings.dropout)
        self.plain = None if settings.mamba.on else PlainFusion(settings)
        self.path = MambaPath(settings, first=first, last=last) if settings.mamba.on else None

    def forward(
        self,
        x_BTH: Tensor,
        state: dict[str, Any] | None = None,
        sent: Sent | None = None,
        dt_BT: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Any], Sent, Inside]:
        """The output, the state after it, what goes to the next block, and what happened."""
        old, sent = state or {}, sent or Sent()
        new: dict[str, Any] = {}
        encoded, new["encoder"] = self.encoder(
            normed(self.norm, x_BTH), old.get("encoder"), extra_BTK=sent.current_BTK
        )
        s_BTK = normed(
            self.membrane_norm, encoded.membrane_BTK, base=encoded.rate_BTK, share=_MEMBRANE
        )
        driven_BTU = self.synapses(s_BTK)

        def liquid(before: Any, scale_BTU: Tensor | None) -> tuple[Tensor, Any]:
            return self.liquid(driven_BTU, before, dt_BT=dt_BT, tau_scale_BTU=scale_BTU)

        scale_BTU = None if self.path is None else self.path.tau_scale(sent.mamba_BTH)
        l_BTU, new["liquid"] = liquid(old.get("liquid"), scale_BTU)
        reported, opening_BTG = Sent(), None
        if self.path is not None:
            mixed = self.path(l_BTU, encoded, liquid, old, new)
            out_BTH, l_BTU = x_BTH + self.dropout(mixed.y_BTH), mixed.liquid_BTU
            reported, opening_BTG = mixed.sent, mixed.opening_BTG
        else:
            assert self.plain is not None
            out_BTH = self.plain(x_BTH, l_BTU, s_BTK)
        if self.decoder is not None:
            decoded_BTH = self.decoder(encoded.train_SBTK, encoded.rate_BTK)
            out_BTH = torch.add(out_BTH, decoded_BTH, alpha=_DECODED)
        if isinstance(self.synapses, PlasticLinear):
            self.synapses.observe(l_BTU)
        inside = Inside(encoded.rate_BTK, encoded.near, l_BTU, driven_BTU, opening_BTG)
        return out_BTH, new, reported, inside


def lif_options(settings: ModelSettings) -> dict[str, Any]:
    """How all neurons of a model fire."""
    spikes = settings.spikes
    return {
        "beta": spikes.beta,
        "threshold": spikes.threshold,
        "reset": spikes.reset,
        "surrogate": spikes.surrogate,
        "slope": spikes.slope if spikes.slope_from is None else spikes.slope_from,
        "learn_beta": spikes.learn_beta,
        "learn_threshold": spikes.learn_threshold,
    }

"""LTC: liquid time constant cell with conductance synapses and a fused semi-implicit solver."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..linear import inverse_softplus
from ..precision import full_precision, no_autocast
from .cell import LiquidCell, Time, per_token
from .wirings import Wiring

_EPS = 1e-8


def _between(low: float, high: float, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(low, high)


class Synapses(nn.Module):
    """Conductances from sources j to neurons i, all matrices (to, from).

    ``polarity`` (sources, units) is 1, -1 or, without a synapse, 0; dense and random when missing.
    """

    mask: Tensor

    def __init__(self, sources: int, units: int, polarity: Tensor | None = None) -> None:
        super().__init__()
        if polarity is None:
            polarity = torch.randint(2, (sources, units)) * 2.0 - 1
        self.w_raw = nn.Parameter(inverse_softplus(_between(0.001, 1, units, sources)))
        self.sigma = nn.Parameter(_between(3, 8, units, sources))
        self.mu = nn.Parameter(_between(0.3, 0.8, units, sources))
        self.reversal = nn.Parameter(polarity.T.clone())
        self.register_buffer("mask", (polarity != 0).float().T, persistent=False)

    @property
    def w(self) -> Tensor:
        """Conductance of every open synapse."""
        return F.softplus(self.w_raw) * self.mask

    def opening(self, v: Tensor) -> Tensor:
        """How open every synapse is, (..., units, sources)."""
        return torch.sigmoid(self.sigma * (v.unsqueeze(-2) - self.mu))

    def strengths(self) -> tuple[Tensor, Tensor]:
        """Weights of an opening in the two sums, (units, sources)."""
        w = self.w
        return w, w * self.reversal

    def sums(self, v: Tensor, strengths: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Sums of conductance, and of conductance times reversal potential, (..., units)."""
        opening = self.opening(v)
        return (opening * strengths[0]).sum(-1), (opening * strengths[1]).sum(-1)


class LTC(LiquidCell):
    """Liquid time constant cell, dense or over a ``wiring``, with ``unfolds`` solver steps a token.

    With a wiring the state holds all neurons and the outputs are its motor neurons.
    """

    def __init__(
        self, inputs: int, units: int, unfolds: int = 6, wiring: Wiring | None = None
    ) -> None:
        super().__init__(inputs, units, None if wiring is None else wiring.units)
        self.unfolds = unfolds
        sensory, between = (None, None) if wiring is None else wiring.adjacency()
        self.sensory = Synapses(inputs, self.state_width, sensory)
        self.recurrent = Synapses(self.state_width, self.state_width, between)
        self.leak_raw = nn.Parameter(inverse_softplus(_between(0.001, 1, self.state_width)))
        self.rest = nn.Parameter(_between(-0.2, 0.2, self.state_width))
        self.capacity_raw = nn.Parameter(inverse_softplus(_between(0.4, 0.6, self.state_width)))

    def sequence(self, x_BTF: Tensor, h: Tensor, time: Time) -> Tensor:
        """The sums over inputs, the same in every solver step, for all tokens together."""
        states = []
        with no_autocast(x_BTF):
            leak, capacity = F.softplus(self.leak_raw), F.softplus(self.capacity_raw)
            sensory = self.sensory.sums(full_precision(x_BTF), self.sensory.strengths())
            conductance, drive = sensory[0] + (leak + _EPS), sensory[1] + leak * self.rest
            strengths = self.recurrent.strengths()
            tokens = zip(conductance.unbind(1), drive.unbind(1), per_token(time), strict=False)
            for g, i, dt in tokens:
                inertia = capacity * self.unfolds / dt
                g = g + inertia
                for _ in range(self.unfolds):
                    to_g, to_i = self.recurrent.sums(h, strengths)
                    h = (inertia * h + i + to_i) / (g + to_g)
                states.append(h)
            return torch.stack(states, 1)

    def step(self, x_BF: Tensor, h: Tensor, time: Time) -> Tensor:
        """The formulas as they are published."""
        leak, capacity = F.softplus(self.leak_raw), F.softplus(self.capacity_raw)
        inertia = capacity / (time / self.unfolds)
        for _ in range(self.unfolds):
            numerator, denominator = inertia * h + leak * self.rest, inertia + leak + _EPS
            for synapses, source in ((self.sensory, x_BF), (self.recurrent, h)):
                act = synapses.w * synapses.opening(source)
                numerator = numerator + (act * synapses.reversal).sum(-1)
                denominator = denominator + act.sum(-1)
            h = numerator / denominator
        return h

    def rates(self, x_BTF: Tensor, before_BTU: Tensor) -> Tensor:
        """All conductances that a neuron has when a token arrives, over its capacity."""
        g = F.softplus(self.leak_raw)
        for synapses, source in ((self.sensory, x_BTF), (self.recurrent, before_BTU)):
            g = g + synapses.sums(source, synapses.strengths())[0]
        return g / F.softplus(self.capacity_raw)

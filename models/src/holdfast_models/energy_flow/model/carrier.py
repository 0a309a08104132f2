"""The carrier: the GRU that every flow is, and its two heads.

N flows, C carrier width, L layers, K width of a layer's input, o width of the neuron's output.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from .settings import CarrierSettings

__all__ = [
    "MOST_ENERGY",
    "MOST_MOVE",
    "Carrier",
    "GruLayer",
    "bounded_input",
    "bounded_move",
    "new_energy",
    "scale_at",
]

MOST_MOVE = 0.5
"""Largest displacement of a flow on one axis in one step, before drift and noise."""

MOST_ENERGY = 4.0
"""Largest absolute energy; a guard, far above what a surface holds."""

_MOVE_HIDDEN = 64


def scale_at(step: int, settings: CarrierSettings) -> float:
    """What displacements are multiplied with at this optimizer step, from 0."""
    if step < settings.scale_warmup:
        return settings.scale
    falls = (step - settings.scale_warmup) // settings.scale_every
    return max(settings.scale_min, settings.scale * settings.scale_decay**falls)


def bounded_input(v_NK: Tensor, clip: float) -> Tensor:
    """What the GRU reads, finite and within ``clip``."""
    return v_NK.nan_to_num(nan=0.0, posinf=clip, neginf=-clip).clamp(-clip, clip)


def new_energy(e: Tensor, change: Tensor, form: Literal["residual", "tanh"]) -> Tensor:
    """Energies after a step, from those before it and what the head says."""
    if form == "tanh":
        return torch.tanh(change)
    return (e + change).clamp(-MOST_ENERGY, MOST_ENERGY)


def bounded_move(d: Tensor, form: Literal["tanh", "clamp"]) -> Tensor:
    """Displacements within ``MOST_MOVE`` on each axis."""
    if form == "clamp":
        return d.clamp(-MOST_MOVE, MOST_MOVE)
    return MOST_MOVE * torch.tanh(d / MOST_MOVE)


class GruLayer(nn.Module):
    """One layer of a GRU for one time step: two matrix products and the gates.

    Parameters are shaped and ordered as in ``torch.nn.GRU``: reset, update, new.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(3 * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(3 * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.zeros(3 * hidden))
        self.bias_hh = nn.Parameter(torch.zeros(3 * hidden))
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.orthogonal_(self.weight_hh)
        with torch.no_grad():
            # The update gate starts at sigmoid(2): a flow mostly keeps what it knows.
            self.bias_ih[hidden : 2 * hidden] = 1.0
            self.bias_hh[hidden : 2 * hidden] = 1.0

    def forward(self, v_NK: Tensor, h_NC: Tensor) -> Tensor:
        """The next state."""
        width = h_NC.shape[-1]
        split = (2 * width, width)
        gates_i, new_i = functional.linear(v_NK, self.weight_ih, self.bias_ih).split(split, -1)
        gates_h, new_h = functional.linear(h_NC, self.weight_hh, self.bias_hh).split(split, -1)
        reset_NC, update_NC = torch.sigmoid(gates_i + gates_h).chunk(2, -1)
        new_NC = torch.tanh(new_i + reset_NC * new_h)
        return new_NC + update_NC * (h_NC - new_NC)


class Carrier(nn.Module):
    """Moves flows on by one step: new state, new energy, displacement.

    With ``energy="residual"`` both heads end in zeros: until it is trained, a flow keeps its
    energy and its column.
    """

    def __init__(self, settings: CarrierSettings) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden
        inputs = [settings.neuron_output + 1, *[hidden] * (settings.layers - 1)]
        self.layers = nn.ModuleList(GruLayer(width, hidden) for width in inputs)
        # The first layers of both heads read the same state: one product for the two.
        self.split = (hidden // 2, _MOVE_HIDDEN)
        self.heads = nn.Linear(hidden, sum(self.split))
        self.energy_end = nn.Linear(hidden // 2, 1)
        self.move_end = nn.Linear(_MOVE_HIDDEN, 3)
        self._initialise_heads()

    def _initialise_heads(self) -> None:
        for part in self.heads.weight.detach().split(self.split):  # each has a fan-out of its own
            nn.init.xavier_normal_(part)
        nn.init.zeros_(self.heads.bias)
        for end in (self.energy_end, self.move_end):
            if self.settings.energy == "residual":
                nn.init.zeros_(end.weight)
            else:
                nn.init.xavier_normal_(end.weight)
            nn.init.zeros_(end.bias)

    def step(
        self, u_No: Tensor, e_N1: Tensor, h_LNC: Tensor, scale: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One lattice step for all flows at once.

        Args:
            u_No: what the neuron answered.
            e_N1: energies before the step; new energies and displacements get its dtype.
            h_LNC: states before the step.
            scale: see ``scale_at``; a scalar tensor where a graph is captured once for all steps.

        Returns:
            Energies ``e_N1``, displacements ``delta_N3`` (no drift, no noise), states ``h_LNC``,
            and how many entries of the GRU's input were not finite or out of range: a scalar on
            the device.
        """
        settings = self.settings
        v_NK = torch.cat((u_No, e_N1), dim=-1)
        guarded = torch.logical_not(v_NK.detach().abs() <= settings.input_clip).sum()  # also NaN
        v_NK = bounded_input(v_NK, settings.input_clip)
        states: list[Tensor] = []
        # unbind, not indexing: its backward is one stack and not L full-size additions.
        for layer, h_NC in zip(self.layers, h_LNC.unbind(0), strict=True):
            v_NK = layer(v_NK, h_NC)
            states.append(v_NK)
        energy_N, move_N = functional.gelu(self.heads(v_NK)).split(self.split, -1)
        change_N1 = self.energy_end(energy_N).to(e_N1.dtype)
        d_N3 = self.move_end(move_N).to(e_N1.dtype)
        return (
            new_energy(e_N1, change_N1, settings.energy),
            bounded_move(scale * d_N3, settings.bound),
            torch.stack(states),
            guarded,
        )

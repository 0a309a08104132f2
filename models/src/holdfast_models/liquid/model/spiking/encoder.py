"""Spiking encoder: two stages of Linear and LIF that turn features into rates and membranes."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from ..linear import he_linear
from .lif import LIF


class Encoded(NamedTuple):
    """What the second stage says of every token."""

    rate_BTK: Tensor
    membrane_BTK: Tensor
    train_SBTK: Tensor
    near: tuple[Tensor, Tensor]  # of each stage, as in ``Spikes``


class SpikeEncoder(nn.Module):
    """H features to K spiking units.

    A token is a constant current for S ``steps`` and starts at rest, so tokens are independent and
    there is no state: it is ``()``. With ``persist`` a token is one step (S is 1) and the membranes
    of both stages are carried on: the state is the two of them. ``lif`` are options of LIF.
    """

    def __init__(
        self,
        width: int,
        units: int,
        steps: int = 10,
        dropout: float = 0.2,
        persist: bool = False,
        **lif: Any,
    ) -> None:
        super().__init__()
        self.steps, self.persist = 1 if persist else steps, persist
        self.first, self.first_lif = he_linear(width, 2 * units), LIF(2 * units, **lif)
        self.dropout = nn.Dropout(dropout)
        self.second, self.second_lif = he_linear(2 * units, units), LIF(units, **lif)

    def forward(
        self,
        x_BTH: Tensor,
        state: tuple[Tensor, ...] | None = None,
        extra_BTK: Tensor | None = None,
    ) -> tuple[Encoded, tuple[Tensor, ...]]:
        """``extra_BTK`` is added to the current of the second stage."""
        before = state or (None, None)
        if self.persist:
            hidden, first = self.first_lif.sequence(self.first(x_BTH), before[0])
        else:
            hidden, first = self.first_lif.constant(self.first(x_BTH), self.steps), None
        current = self.second(self.dropout(hidden.train))
        if extra_BTK is not None:
            current = current + extra_BTK
        if first is None:
            spikes, state = self.second_lif.steps(current), ()
        else:
            spikes, second = self.second_lif.sequence(current[0], before[1])
            state = (first, second)
        near = (hidden.near, spikes.near)
        return Encoded(spikes.rate, spikes.membrane, spikes.train, near), state

"""What all liquid cells share: their signature, the slow reference and the time constants."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..precision import full_precision, no_autocast

Time = Tensor | float
"""Elapsed time over the scale of the time constants: one number, or (..., 1 or state width)."""


class LiquidCell(nn.Module):
    """Cell from F ``inputs`` to U ``units``, the first units of a state of ``state_width``."""

    def __init__(self, inputs: int, units: int, state_width: int | None = None) -> None:
        super().__init__()
        self.inputs, self.units = inputs, units
        self.state_width = units if state_width is None else state_width

    @abstractmethod
    def sequence(self, x_BTF: Tensor, h: Tensor, time: Time) -> Tensor:
        """States of all tokens from the state ``h`` before them; the fast way."""

    @abstractmethod
    def step(self, x_BF: Tensor, h: Tensor, time: Time) -> Tensor:
        """State after one token, as the formulas are written."""

    @abstractmethod
    def rates(self, x_BTF: Tensor, before_BTU: Tensor) -> Tensor:
        """One over the time constants, given the states before every token."""

    def forward(
        self,
        x_BTF: Tensor,
        state_BU: Tensor | None = None,
        *,
        dt_BT: Tensor | None = None,
        tau_scale_BTU: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Outputs of all tokens, and the state; ``tau_scale_BTU`` stretches time constants."""
        states = self.sequence(
            x_BTF, self._start(x_BTF, state_BU), self._time(dt_BT, tau_scale_BTU)
        )
        return states[..., : self.units], states[:, -1]

    def reference(
        self, x_BTF: Tensor, state_BU: Tensor | None = None, **times: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What ``forward`` must equal."""
        states = self.by_steps(x_BTF, self._start(x_BTF, state_BU), self._time(**times))
        return states[..., : self.units], states[:, -1]

    def by_steps(self, x_BTF: Tensor, h: Tensor, time: Time) -> Tensor:
        """What ``sequence`` must equal: token by token, nothing computed ahead."""
        states = []
        for x, dt in zip(x_BTF.unbind(1), per_token(time), strict=False):
            h = self.step(x, h, dt)
            states.append(h)
        return torch.stack(states, 1)

    @torch.no_grad()
    def time_constants(self, x_BTF: Tensor) -> Tensor:
        """tau_BTU of a run from a zero state with dt 1, for pictures and detectors."""
        x_BTF = full_precision(x_BTF)
        with no_autocast(x_BTF):
            start = self._start(x_BTF, None)
            states = self.sequence(x_BTF, start, 1.0)
            before = torch.cat([start.unsqueeze(1), states[:, :-1]], 1)
            return 1 / self.rates(x_BTF, before)[..., : self.units].clamp(min=1e-6)

    def _start(self, x_BTF: Tensor, state_BU: Tensor | None) -> Tensor:
        dtype = torch.promote_types(x_BTF.dtype, torch.float32)
        if state_BU is not None:
            return state_BU.to(dtype)
        return x_BTF.new_zeros(x_BTF.shape[0], self.state_width, dtype=dtype)

    def _time(self, dt_BT: Tensor | None = None, tau_scale_BTU: Tensor | None = None) -> Time:
        dt = 1.0 if dt_BT is None else full_precision(dt_BT).unsqueeze(-1)
        if tau_scale_BTU is None:
            return dt
        # Units of the state that are no outputs keep their time constants.
        hidden = self.state_width - self.units
        return dt / F.pad(full_precision(tau_scale_BTU), (0, hidden), value=1.0)


def per_token(time: Time) -> Iterable[Time]:
    """``time`` token by token; unbind, because indexing costs a full-size gradient per token."""
    return time.unbind(1) if isinstance(time, Tensor) else repeat(time)

"""The Mamba block: a state-space model whose rates, inputs and outputs depend on the token.

Shape suffixes: B batch, T tokens, H width, D = expand x H channels, R rank of the step sizes, N
states per channel, G heads (as many as channels in the selective kind), U liquid units, C
convolution width minus one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast import HoldfastError

from ..linear import he_linear, inverse_softplus, residual_linear, zero_linear
from ..precision import full_precision, no_autocast
from .selective import selective_loop, selective_scan
from .ssd import ssd

KINDS = ("selective", "ssd")
FORMS = ("chunk", "loop", "associative")

_STEP_SIZES = (1e-3, 0.1)  # of delta at the start, spread evenly in the logarithm
_HEAD = 64  # channels of a head of the ssd kind, or fewer where they do not divide D


class MambaState(NamedTuple):
    """What the block remembers: the last inputs of its convolution, and the state in fp32."""

    tail_BCD: Tensor
    h_BDN: Tensor


class Mamba(nn.Module):
    """Selective state-space block, causal and linear in the number of tokens.

        mamba = Mamba(64)
        y_BTH, state = mamba(x_BTH)              # a whole sequence
        y_B1H, state = mamba(next_B1H, state)    # one token more

    Args:
        width: H, of inputs and outputs.
        state: N, states per channel.
        conv: width of the causal convolution.
        expand: channels inside, in multiples of the width.
        kind: "selective" has a rate for every channel and state, "ssd" one per head of 64
            channels, which needs matrix products only.
        form: "chunk" is the fast one, "loop" the plain reference, "associative" torch's own scan.
        liquid_units: U, of a liquid cell that adds to ``b`` and ``c``; nothing at the start.
    """

    def __init__(
        self,
        width: int,
        state: int = 16,
        conv: int = 4,
        expand: int = 2,
        kind: str = "selective",
        form: str = "chunk",
        liquid_units: int | None = None,
    ) -> None:
        super().__init__()
        if kind not in KINDS or form not in FORMS:
            raise HoldfastError(
                f"Mamba has no kind {kind!r} with form {form!r}; "
                f"kinds are {', '.join(KINDS)}, forms {', '.join(FORMS)}"
            )
        channels = expand * width
        rank = math.ceil(width / 16)
        if kind == "selective":  # every channel has the rates 1..N
            rates = torch.arange(1.0, state + 1.0).repeat(channels, 1)
        else:  # spread over the heads
            rates = torch.linspace(1.0, state, channels // math.gcd(channels, _HEAD))
        self.kind, self.form = kind, form
        self.parts = (rank, state, state)
        self.in_proj = he_linear(width, 2 * channels, bias=False)
        self.conv = nn.Conv1d(channels, channels, conv, groups=channels)
        nn.init.kaiming_normal_(self.conv.weight)
        nn.init.zeros_(self.conv.bias)  # pyright: ignore[reportArgumentType]
        self.x_proj = he_linear(channels, sum(self.parts), bias=False)
        self.dt_proj = _step_sizes(rank, len(rates))
        self.a_log = nn.Parameter(rates.log())
        self.a_log.no_decay = True  # pyright: ignore[reportAttributeAccessIssue]
        self.skip = nn.Parameter(torch.ones(channels))
        self.norm = nn.RMSNorm(channels, eps=1e-5)
        self.out_proj = residual_linear(channels, width, bias=False)
        self.exchange = None
        if liquid_units is not None:
            self.exchange = zero_linear(liquid_units, 2 * state, bias=False)

    def forward(
        self, x_BTH: Tensor, state: MambaState | None = None, *, liquid_BTU: Tensor | None = None
    ) -> tuple[Tensor, MambaState]:
        """Outputs of the same shape, and the state after the last token."""
        if (liquid_BTU is None) != (self.exchange is None):
            raise HoldfastError(
                "Mamba takes liquid states if and only if it was made with liquid_units; "
                "give both or neither"
            )
        x_BTD, z_BTD = self.in_proj(x_BTH).chunk(2, dim=-1)
        tail_BCD, h_BDN = self._empty(x_BTD) if state is None else state
        whole_BTD = torch.cat((tail_BCD.to(x_BTD.dtype), x_BTD), dim=1)
        tail_BCD = whole_BTD[:, x_BTD.shape[1] :]
        x_BTD = functional.silu(self.conv(whole_BTD.transpose(1, 2))).transpose(1, 2)
        delta_BTR, b_BTN, c_BTN = self.x_proj(x_BTD).split(self.parts, dim=-1)
        if self.exchange is not None:
            more_b_BTN, more_c_BTN = self.exchange(liquid_BTU).chunk(2, dim=-1)
            b_BTN, c_BTN = b_BTN + more_b_BTN, c_BTN + more_c_BTN
        # Step sizes and rates are sensitive: everything up to the norm stays in fp32.
        with no_autocast(x_BTH):
            y_BTD, h_BDN = self._recurrence(x_BTD, delta_BTR, b_BTN, c_BTN, h_BDN)
            y_BTD = self.norm(y_BTD)
        y_BTH = self.out_proj(y_BTD.to(z_BTD.dtype) * functional.silu(z_BTD))
        return y_BTH, MambaState(tail_BCD, h_BDN)

    def _empty(self, x_BTD: Tensor) -> MambaState:
        batch, _, channels = x_BTD.shape
        tail_BCD = x_BTD.new_zeros(batch, self.conv.kernel_size[0] - 1, channels)
        return MambaState(tail_BCD, full_precision(x_BTD.new_zeros(batch, channels, self.parts[1])))

    def _recurrence(
        self, x_BTD: Tensor, delta_BTR: Tensor, b_BTN: Tensor, c_BTN: Tensor, h_BDN: Tensor
    ) -> tuple[Tensor, Tensor]:
        x_BTD, delta_BTR, b_BTN, c_BTN = map(full_precision, (x_BTD, delta_BTR, b_BTN, c_BTN))
        delta = functional.softplus(self.dt_proj(delta_BTR))
        a = -torch.exp(self.a_log)
        if self.kind == "ssd" and self.form == "chunk":
            y_BTD, h_BDN = ssd(x_BTD, delta, b_BTN, c_BTN, a, h_BDN)
            return y_BTD + self.skip * x_BTD, h_BDN
        if self.kind == "ssd":  # what a head has, for each of its channels
            shared = x_BTD.shape[-1] // len(a)
            delta = delta.repeat_interleave(shared, dim=-1)
            a = a.repeat_interleave(shared)[:, None].expand(-1, b_BTN.shape[-1])
        given = (x_BTD, delta, b_BTN, c_BTN, a, h_BDN)
        loop = self.form == "loop"
        y_BTD, h_BDN = selective_loop(*given) if loop else selective_scan(*given, self.form)
        return y_BTD + self.skip * x_BTD, h_BDN


def _step_sizes(rank: int, outputs: int) -> nn.Linear:
    """The layer before softplus: its bias gives step sizes that are log-uniform at the start."""
    made = nn.Linear(rank, outputs)
    nn.init.uniform_(made.weight, -(rank**-0.5), rank**-0.5)
    log_delta = torch.empty(outputs).uniform_(*map(math.log, _STEP_SIZES))
    made.bias.data = inverse_softplus(log_delta.exp())
    return made

"""ltc_scan: liquid cell whose time constants depend on the input alone, so that it is a scan.

With x held over a step, dh/dt = -rho h + phi A has the exact solution

    d_t = exp(-rho_t dt_t)      h_t = d_t h_{t-1} + (1 - d_t) (phi_t / rho_t) A_t
    phi = softplus(Wf x + bf)   A = tanh(WA x + bA)   rho = 1 / tau + phi

Since 0 < d < 1 and phi < rho, |h| never exceeds 1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...scan import scan
from ..linear import inverse_softplus
from ..precision import full_precision, no_autocast
from .cell import LiquidCell, Time

# Spread of time constants (tokens) and conductances at the start, log-uniform: some units forget
# within two tokens, some keep a hundred. A guess.
_TAU = (2.0, 128.0)
_PHI = (0.01, 0.5)


def _log_uniform(low: float, high: float, units: int) -> Tensor:
    return torch.empty(units).uniform_(math.log(low), math.log(high)).exp()


class LTCScan(LiquidCell):
    """Scan-parallel liquid cell; ``form`` is the form of the scan."""

    def __init__(self, inputs: int, units: int, form: str = "chunk") -> None:
        super().__init__(inputs, units)
        self.form = form
        self.read = nn.Linear(inputs, 2 * units)
        for weight in self.read.weight.detach().split(units):
            nn.init.xavier_uniform_(weight)
        phi = inverse_softplus(_log_uniform(*_PHI, units))
        self.read.bias = nn.Parameter(torch.cat([phi, torch.zeros(units)]))
        self.tau_raw = nn.Parameter(inverse_softplus(_log_uniform(*_TAU, units)))

    def _parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Conductance, target and rate."""
        phi, target = full_precision(self.read(x)).chunk(2, -1)
        with no_autocast(x):
            phi = F.softplus(phi)
            return phi, torch.tanh(target), phi + 1 / F.softplus(self.tau_raw)

    def sequence(self, x_BTF: Tensor, h: Tensor, time: Time) -> Tensor:
        """All tokens by one scan; expm1 keeps 1 - d exact where d is almost 1."""
        phi, target, rho = self._parts(x_BTF)
        exponent = -rho * time
        value = -torch.expm1(exponent) * (phi / rho) * target
        return scan(torch.exp(exponent), value, h, form=self.form)

    def step(self, x_BF: Tensor, h: Tensor, time: Time) -> Tensor:
        """The exact solution over one token."""
        phi, target, rho = self._parts(x_BF)
        d = torch.exp(-rho * time)
        return d * h + (1 - d) * (phi / rho) * target

    def rates(self, x_BTF: Tensor, before_BTU: Tensor) -> Tensor:
        """The rate rho of every token."""
        return self._parts(x_BTF)[2]

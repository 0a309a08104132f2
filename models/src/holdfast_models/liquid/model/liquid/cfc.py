"""CfC: closed-form continuous-time cell, dense or wired.

With z of input and state, elapsed time dt and four gates that are linear in z:

    f = tanh(.)   g = tanh(.)   k = sigmoid(a * dt + c)   h = f * (1 - k) + k * g
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast import HoldfastError

from ...kernels import ops
from ..linear import linear
from ..precision import full_precision, no_autocast
from .cell import LiquidCell, Time, per_token
from .through_time import ThroughTime, fits
from .wirings import ncp_wiring

MODES = ("default", "no_gate", "pure")
Layers = list[tuple[Tensor, Tensor]]  # weight and bias


_OUTER, _INNER = 1.7159, 0.666  # LeCun's tanh


def _lecun_tanh(v: Tensor) -> Tensor:
    return _OUTER * torch.tanh(_INNER * v)


class CfC(LiquidCell):
    """Closed-form cell, dense; ``backbone_layers`` may be 0.

    ``mask`` (inputs + units, units) says which weights of f and g a wiring has; it asks for a cell
    without backbone. The time gates stay dense.
    """

    mask: Tensor | None

    def __init__(
        self,
        inputs: int,
        units: int,
        mode: str = "default",
        backbone_units: int = 128,
        backbone_layers: int = 1,
        mask: Tensor | None = None,
    ) -> None:
        super().__init__(inputs, units)
        if mode not in MODES:
            raise HoldfastError(f"CfC has no mode {mode!r}; choose one of {', '.join(MODES)}.")
        self.mode = mode
        gates = 1 if mode == "pure" else 4
        widths = [inputs + units, *[backbone_units] * backbone_layers, gates * units]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for fan_in, fan_out in pairwise(widths):
            self.weights.append(nn.Parameter(torch.empty(fan_out, fan_in)))
            self.biases.append(nn.Parameter(torch.zeros(fan_out)))
        for weight in (*list(self.weights)[:-1], *self.weights[-1].detach().split(units)):
            nn.init.xavier_uniform_(weight)
        if mode == "pure":
            # Not 0, where |w_tau| has no gradient.
            self.w_tau = nn.Parameter(torch.full((units,), 0.1))
            self.amplitude = nn.Parameter(torch.ones(units))
        if mask is not None:
            wired = (mask != 0).float().T
            dense = torch.ones_like(wired)
            mask = torch.cat([wired, wired, dense, dense][:gates])
        self.register_buffer("mask", mask, persistent=False)

    def _layers(self) -> Layers:
        """Layers with the mask applied, the gates last."""
        weights = list(self.weights)
        if self.mask is not None:
            weights[-1] = weights[-1] * self.mask
        return list(zip(weights, self.biases, strict=True))

    def sequence(self, x_BTF: Tensor, h: Tensor, time: Time) -> Tensor:
        """The input half of the first layer for all tokens at once; a step multiplies the state."""
        (weight, bias), *later = self._layers()
        from_input = full_precision(linear(x_BTF, weight[:, : self.inputs], bias))
        by_state = weight[:, self.inputs :]
        with no_autocast(x_BTF):
            states = self._loop(from_input, by_state, later, h, time)
            if not torch.is_grad_enabled():
                return states
            before = torch.cat([h.detach().unsqueeze(1), states[:, :-1]], 1)
            z, between = from_input + before @ by_state.T, []
            for w, b in later:
                y = _lecun_tanh(z)
                between += [w.detach(), _INNER * (_OUTER - y.detach().square() / _OUTER)]
                z = F.linear(y, w, b)
            states, slopes = self._state(z, time), self._slopes(z, time)
            return ThroughTime.apply(states, h, slopes, by_state.detach(), *between)

    @torch.no_grad()
    def _loop(
        self, z_BTG: Tensor, by_state: Tensor, later: Layers, h: Tensor, time: Time
    ) -> Tensor:
        """States token by token; factors of the activation go into the weights beforehand."""
        if self.mode == "default" and fits(z_BTG, self.units, [w for w, _ in later]):
            gates, bias = later[0] if later else (None, None)
            times = time.expand(*z_BTG.shape[:2], self.units) if isinstance(time, Tensor) else None
            dt = 1.0 if isinstance(time, Tensor) else time
            return ops.cfc(z_BTG, by_state, gates, bias, h, times, dt)
        inner = _INNER if later else 1.0
        z_BTG, by_state, states = inner * z_BTG, inner * by_state.T, []
        hidden = [(_INNER * _OUTER * w.T, _INNER * b) for w, b in later[:-1]]
        hidden += [(_OUTER * w.T, b) for w, b in later[-1:]]
        for z, dt in zip(z_BTG.unbind(1), per_token(time), strict=False):
            z = torch.addmm(z, h, by_state)
            for w, b in hidden:
                z = torch.addmm(b, torch.tanh(z), w)
            h = self._state(z, dt)
            states.append(h)
        return torch.stack(states, 1)

    @torch.no_grad()
    def _slopes(self, z: Tensor, dt: Time) -> Tensor:
        """Derivatives of the new state by the sums of its gates, (B, T, gates, U)."""
        if self.mode == "pure":
            decay = torch.exp(-dt * (self.w_tau.abs() + z.abs()))
            return (self.amplitude * decay * (dt * z.abs() - 1)).unsqueeze(-2)
        f, g, a, c = z.split(self.units, -1)
        f, g, k = torch.tanh(f), torch.tanh(g), torch.sigmoid(a * dt + c)
        of_k, of_f = (g, 1.0) if self.mode == "no_gate" else (g - f, 1 - k)
        of_k = of_k * k * (1 - k)
        return torch.stack([of_f * (1 - f * f), k * (1 - g * g), of_k * dt, of_k], -2)

    def _state(self, z: Tensor, dt: Time) -> Tensor:
        """New state from the sums of the gates, in few operations."""
        if self.mode == "pure":
            decay = torch.exp(-dt * (self.w_tau.abs() + z.abs()))
            return self.amplitude - self.amplitude * decay * z
        f, g, a, c = z.split(self.units, -1)
        f, g, k = torch.tanh(f), torch.tanh(g), torch.sigmoid(a * dt + c)
        return f + k * g if self.mode == "no_gate" else torch.lerp(f, g, k)

    def _gates(self, x: Tensor, h: Tensor) -> Tensor:
        """Sums of the gates for inputs and the states before them."""
        (weight, bias), *later = self._layers()
        z = F.linear(torch.cat([x, h], -1), weight, bias)
        for weight, bias in later:
            z = F.linear(_lecun_tanh(z), weight, bias)
        return z

    def step(self, x_BF: Tensor, h: Tensor, time: Time) -> Tensor:
        """The gates, then the new state."""
        return self._state(self._gates(x_BF, h), time)

    def rates(self, x_BTF: Tensor, before_BTU: Tensor) -> Tensor:
        """How fast the time gate, or the decay of mode pure, goes with elapsed time."""
        gates = self._gates(x_BTF, before_BTU).abs()
        if self.mode == "pure":
            return self.w_tau.abs() + gates
        return gates[..., 2 * self.units : 3 * self.units]


class WiredCfC(LiquidCell):
    """CfC over a wiring: three sparse cells, inter, command and motor; outputs are the motors.

    A layer reads the one before at the same token, so each runs over the whole sequence in turn.
    States are motor, command and inter neurons side by side.
    """

    def __init__(
        self, inputs: int, units: int, mode: str = "default", density: float = 0.5, seed: int = 0
    ) -> None:
        wiring = ncp_wiring(inputs, units, density=density, seed=seed)
        super().__init__(inputs, units, wiring.units)
        self.wiring = wiring
        cells = []
        for polarity in (wiring.sensory, wiring.inter, wiring.motor):
            sources, targets = polarity.shape
            mask = torch.cat([polarity, torch.ones(targets, targets)])
            cells.append(CfC(sources, targets, mode, backbone_layers=0, mask=mask))
        self.inter, self.command, self.motor = cells

    def _split(self, state: Time) -> list[tuple[CfC, Time]]:
        """Every cell, first to last, with its part of a state or of a time per unit."""
        cells = [self.motor, self.command, self.inter]
        parts = [state] * 3
        if isinstance(state, Tensor) and state.shape[-1] == self.state_width:
            parts = state.split([cell.units for cell in cells], -1)
        return list(zip(cells, parts, strict=True))[::-1]

    def _through(self, way: str, x: Tensor, h: Tensor, time: Time) -> Tensor:
        states = []
        for (cell, part), (_, dt) in zip(self._split(h), self._split(time), strict=True):
            x = getattr(cell, way)(x, part, dt)
            states.append(x)
        return torch.cat(states[::-1], -1)

    def sequence(self, x_BTF: Tensor, h: Tensor, time: Time) -> Tensor:
        """Cell after cell, each over all tokens."""
        return self._through("sequence", x_BTF, h, time)

    def step(self, x_BF: Tensor, h: Tensor, time: Time) -> Tensor:
        """Cell after cell, one token."""
        return self._through("step", x_BF, h, time)

    def rates(self, x_BTF: Tensor, before_BTU: Tensor) -> Tensor:
        """Rates of the motor neurons."""
        after = self.step(x_BTF, before_BTU, 1.0)
        command = after[..., self.units : self.units + self.command.units]
        return self.motor.rates(command, before_BTU[..., : self.units])

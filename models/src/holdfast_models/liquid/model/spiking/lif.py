"""Leaky integrate-and-fire units.

Per step t, with the reset of the step before detached from the graph:

    R[t] = 1(U[t-1] > threshold)
    U[t] = beta * U[t-1] + I[t] - R[t] * threshold      (reset "subtract")
    z[t] = 1(U[t] > threshold)                          (gradient: a surrogate)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast import HoldfastError

from ...kernels import ops
from ...kernels.choice import takes
from ...scan import scan
from ..linear import inverse_softplus
from ..precision import full_precision
from .surrogates import spike, surrogate_of

RESETS = ("subtract", "zero", "none")


class Spikes(NamedTuple):
    """Answer of spiking units to a current."""

    train: Tensor  # (S, ...)
    rate: Tensor  # mean of the spikes over S
    membrane: Tensor  # mean over S
    near: Tensor  # in parts: share of units and steps with |U - threshold| < 1 / slope, for records


class LIF(nn.Module):
    """A layer of spiking units; ``slope`` is a buffer that training may anneal in place."""

    slope: Tensor

    def __init__(
        self,
        units: int,
        beta: float = 0.95,
        threshold: float = 1.0,
        reset: str = "subtract",
        surrogate: str = "fast_sigmoid",
        slope: float | None = None,
        learn_beta: bool = False,
        learn_threshold: bool = False,
    ) -> None:
        super().__init__()
        if reset not in RESETS:
            raise HoldfastError(f"LIF has no reset {reset!r}; choose one of {', '.join(RESETS)}.")
        if not 0 < beta < 1:
            raise HoldfastError(f"LIF: beta is {beta}; a decay lies between 0 and 1.")
        if threshold <= 0:
            raise HoldfastError(f"LIF: the threshold is {threshold}; it must be above 0.")
        self.reset, self.surrogate = reset, surrogate
        usual = surrogate_of(surrogate).slope
        self.register_buffer("slope", torch.tensor(float(usual if slope is None else slope)))
        # Plain numbers where they are not learned: exact in every precision.
        self._beta, self._threshold = beta, threshold
        self.beta_logit = self.threshold_raw = None
        if learn_beta:
            self.beta_logit = nn.Parameter(torch.full((units,), math.log(beta / (1 - beta))))
        if learn_threshold:
            raw = inverse_softplus(torch.tensor(float(threshold)))
            self.threshold_raw = nn.Parameter(raw.repeat(units))

    @property
    def beta(self) -> Tensor | float:
        """Decay of the membrane per step, one number or one per unit."""
        return self._beta if self.beta_logit is None else torch.sigmoid(self.beta_logit)

    @property
    def threshold(self) -> Tensor | float:
        """Membrane above which a unit fires, one number or one per unit."""
        return self._threshold if self.threshold_raw is None else F.softplus(self.threshold_raw)

    def constant(self, current: Tensor, steps: int) -> Spikes:
        """``current`` (..., K) held for S ``steps``, from a membrane at rest."""
        if self._fuses(current):
            return self._fused(current.unsqueeze(0), steps)[0]
        return self.steps(current.expand(steps, *current.shape))

    def steps(self, current: Tensor) -> Spikes:
        """A current per step, (S, ..., K), from a membrane at rest."""
        if self._fuses(current):
            return self._fused(current, len(current))[0]
        train, membranes = self.run(current)
        return Spikes(train, train.mean(0), membranes.mean(0), self._near(membranes))

    def sequence(self, current: Tensor, membrane: Tensor | None = None) -> tuple[Spikes, Tensor]:
        """One step per token, (B, T, K), the membrane carried on; S is 1 in what comes back."""
        current = current.transpose(0, 1)
        if self._fuses(current):
            spikes, membranes = self._fused(current, len(current), membrane)
            train, near = spikes.train, spikes.near
        else:
            train, membranes = self.run(current, membrane)
            near = self._near(membranes)
        rate, potential = train.transpose(0, 1), membranes.transpose(0, 1)
        return Spikes(rate.unsqueeze(0), rate, potential, near), membranes[-1]

    def _fuses(self, current: Tensor) -> bool:
        fixed = self.beta_logit is None and self.threshold_raw is None
        return fixed and takes("lif", full_precision(current), self.reset, self.surrogate)

    def _fused(
        self, current: Tensor, steps: int, membrane: Tensor | None = None
    ) -> tuple[Spikes, Tensor]:
        """All steps by one kernel; a current of one step is that of all. Membranes come along."""
        current = full_precision(current)
        how = (self._beta, self._threshold, self.reset, self.surrogate)
        train, membranes, *means = _Fire.apply(current, membrane, self.slope, steps, *how)
        return Spikes(train, *means), membranes

    def run(self, current: Tensor, membrane: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Spikes and membranes of all steps; steps are the first dimension of ``current``.

        The resets are found first, without gradients. Given them, the membrane is linear.
        """
        current = full_precision(current)
        membrane = torch.zeros_like(current[0]) if membrane is None else membrane
        beta, threshold = (
            x if isinstance(x, Tensor) else current.new_full((), x)
            for x in (self.beta, self.threshold)
        )
        kept, drive = beta, current
        if self.reset != "none":
            fired = self._resets(current, membrane, beta, threshold)
            if self.reset == "zero":
                kept = (beta * ~fired).transpose(0, 1)
            else:
                drive = current - fired * threshold
        membranes = scan(kept, drive.transpose(0, 1), membrane).transpose(0, 1)
        return spike(membranes - threshold, self.surrogate, self.slope), membranes

    @torch.no_grad()
    def _resets(self, current: Tensor, u: Tensor, beta: Tensor, threshold: Tensor) -> Tensor:
        """Where the step before fired, (S, ...); the same arithmetic as that of the scan."""
        resets = []
        for i in current.unbind(0):
            fired = u > threshold
            if self.reset == "zero":
                u = torch.addcmul(i, beta * ~fired, u)
            else:
                u = torch.addcmul(i - fired * threshold, beta, u)
            resets.append(fired)
        return torch.stack(resets)

    def _near(self, membranes: Tensor) -> Tensor:
        with torch.no_grad():
            near = (membranes - self.threshold).abs() * self.slope < 1
            return near.float().mean().reshape(1)


class _Fire(torch.autograd.Function):
    """``LIF.run`` with its means, two kernels in all."""

    @staticmethod
    def forward(
        current: Tensor,
        start: Tensor | None,
        slope: Tensor,
        steps: int,
        beta: float,
        threshold: float,
        reset: str,
        surrogate: str,
    ) -> tuple[Tensor, ...]:
        return ops.fire(current, start, slope, steps, beta, threshold, reset)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        current, start, slope, _, *ctx.how = inputs
        ctx.constant = current.shape[0] == 1
        if not torch.compiler.is_compiling():  # which cannot say it, and makes zeros
            ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[4])
        ctx.save_for_backward(output[1], start, slope)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        membranes, start, slope = ctx.saved_tensors
        train, all_membranes, rate, mean, _ = grads
        of_current, of_start = ops.fire_backward(
            membranes, start, slope, train, all_membranes, rate, mean, ctx.constant, *ctx.how
        )
        return of_current, of_start if start is not None else None, *[None] * 6

"""Plasticity of a model: after every tenth optimizer step the fast weights move.

Nothing here waits for the device: whether a step was skipped may be a tensor there, and then the
change is masked there. Slow weights are never touched. With several ranks the trainer gives the
buffers of the first one to all, so that its spikes decide.

B batch, T tokens, K inputs, U outputs, L layers, P = 5 parameters of a rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..graphed import Graphed
from .meta import MetaController
from .rules import RULES, make_rule
from .synapses import PlasticLinear, events_of
from .timing import RuleParameters, WeightChange


class Plasticity(nn.Module):
    """Moves the fast weights of ``synapses``, by one rule object per layer.

    Keep it beside the model, not inside: the model saves the fast weights, ``state_dict`` of this
    object everything else. ``last`` has numbers of the last change, on the device.

    The layers come in the order of the model and record from now on. ``rule`` is classical,
    triplet, homeostatic or bcm, with ``options`` of its own; its parameters are ``start`` (or the
    defaults) unless a ``controller`` sets them. ``interval`` optimizer steps lie between two
    changes, whose norm over all layers is at most ``max_norm``.
    """

    start_PL: Tensor

    def __init__(
        self,
        synapses: Sequence[PlasticLinear],
        rule: str = "homeostatic",
        interval: int = 10,
        *,
        start: RuleParameters | None = None,
        max_norm: float = 1.0,
        controller: MetaController | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if not synapses or interval < 1:
            raise HoldfastError(
                f"plasticity has {len(synapses)} layers, interval {interval}; both need 1 or more."
            )
        self.synapses = list(synapses)
        self.interval, self.max_norm, self.controller = interval, max_norm, controller
        self.rules = [
            make_rule(rule, len(each.bias), each.lower, each.upper, **options) for each in synapses
        ]
        self._saved = nn.ModuleList(self.rules)
        start_P1 = torch.tensor(start or RULES[rule].start).unsqueeze(1)
        self.register_buffer("start_PL", start_P1.repeat(1, len(self.synapses)))
        for number, synapse in enumerate(self.synapses):
            synapse.record = True
            self.register_buffer(f"protection_{number}", torch.ones_like(synapse.fast))
            if controller is not None:
                self.rules[number].slopes = True
                eligibility_PUK = synapse.fast.new_zeros(len(start_P1), *synapse.fast.shape)
                self.register_buffer(f"eligibility_{number}", eligibility_PUK)
                synapse.weight.register_post_accumulate_grad_hook(partial(self._keep, number))
        self._gradients: dict[int, Tensor | None] = {}
        self._moved: Graphed | None = None
        self.last: dict[str, Tensor] = {}

    @property
    def now_PL(self) -> Tensor:
        """Parameters of every layer's rule, in the order of ``RuleParameters``."""
        return self.start_PL if self.controller is None else self.controller.now_PL

    def protect(self, factors_UK: Sequence[Tensor]) -> None:
        """Scale later changes, per layer: what consolidation holds moves less."""
        for number, factor_UK in enumerate(factors_UK):
            self.get_buffer(f"protection_{number}").copy_(factor_UK)

    def step(
        self,
        step: int,
        allowed: Tensor | bool = True,
        *,
        loss: Tensor | None = None,
        performance: Tensor | None = None,
    ) -> None:
        """Call after every optimizer step, with its number from 1.

        Multiples of ``interval`` change the weights; the step after teaches the controller. Where
        ``allowed`` is False, because the optimizer step was skipped, nothing changes. A controller
        needs the loss, and takes minus the loss for a missing ``performance``.
        """
        changes = step % self.interval == 0
        teaches = self.controller is not None and step % self.interval == 1 % self.interval
        if changes or teaches:
            device = self.synapses[0].fast.device
            if self.start_PL.device != device:
                self.to(device)
            if not isinstance(allowed, Tensor):
                allowed = torch.full((), allowed, dtype=torch.bool, device=device)
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                if self.controller is not None and teaches:
                    self.controller.learn(self._hypergradient(allowed))
                if changes:
                    allowed = self._change(allowed)
                if self.controller is not None and changes:
                    if loss is None:
                        raise HoldfastError("meta-plasticity needs the loss: step(..., loss=loss).")
                    seen = [-loss if performance is None else performance, loss]
                    entry_3 = torch.stack([*seen, (self.last["change"] + 1e-12).log()])
                    self.controller.remember(entry_3.float(), allowed)
        self._gradients.clear()

    def _change(self, allowed: Tensor) -> Tensor:
        """Move the fast weights; False where they were not moved."""
        records = [part for synapse in self.synapses for part in synapse.recorded()]
        if self._moved is None:
            self._moved = Graphed(self._move, on=allowed.is_cuda, touches=self._touched)
        allowed, *last = self._moved(allowed, *records)
        self.last = dict(zip(("change", "norm", "at_bound"), last, strict=True))
        return allowed

    def _touched(self) -> list[Tensor]:
        own = [self.now_PL, *self.buffers()]
        return own + [part for one in self.synapses for part in (one.fast, one.alpha)]

    def _move(self, allowed: Tensor, *recorded: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Hundreds of small operations that change buffers in place; what ``last`` has."""
        records = list(zip(recorded[::2], recorded[1::2], strict=True))
        for pre_BTK, h_BTU in records:
            allowed = allowed & pre_BTK.isfinite().all() & h_BTU.isfinite().all()
        changes, moves = list[tuple[WeightChange, RuleParameters]](), list[Tensor]()
        for number, (pre_BTK, h_BTU) in enumerate(records):
            rule, post_BTU = self.rules[number], events_of(h_BTU)
            rule.advance(post_BTU, allowed)
            now = RuleParameters(*self.now_PL[:, number].unbind())
            change = rule.change(pre_BTK, post_BTU, self.synapses[number].fast, now)
            changes.append((change, now))
            moves.append(now.eta * self.get_buffer(f"protection_{number}") * change.total(now))
        norm = torch.stack(torch._foreach_norm(moves)).norm()
        allowed = allowed & norm.isfinite()
        scale = (self.max_norm / (norm + 1e-12)).clamp(max=1.0)
        moved, at_bound = norm.new_zeros(()), norm.new_zeros(())
        for number, synapse in enumerate(self.synapses):
            move_UK = torch.where(allowed, scale * moves[number], 0.0)
            free_UK = synapse.fast + move_UK
            synapse.fast.copy_(free_UK.clamp(synapse.lower, synapse.upper))
            moved += move_UK.abs().mean() / len(moves)
            at_bound += (synapse.fast.abs() >= synapse.upper).float().mean() / len(moves)
            if self.controller is not None:
                factor_UK = scale * self.get_buffer(f"protection_{number}")
                counts_UK = allowed & (free_UK == synapse.fast)
                derivative_PUK = factor_UK * _derivatives(*changes[number])
                eligibility_PUK = self.get_buffer(f"eligibility_{number}")
                eligibility_PUK.copy_(torch.where(counts_UK, derivative_PUK, 0.0))
        return allowed, moved, norm, at_bound

    def _hypergradient(self, allowed: Tensor) -> Tensor:
        """What the gradient after the last change says about the parameters that made it.

        A step without a backward pass (its loss was not finite) says nothing, as a skipped one.
        """
        found_PL = torch.zeros_like(self.now_PL)
        for number, gradient_UK in self._gradients.items():
            if gradient_UK is not None:
                slope_PUK = self.get_buffer(f"eligibility_{number}") * gradient_UK
                found_PL[:, number] = self.synapses[number].alpha * slope_PUK.sum((1, 2))
        return torch.where(allowed & found_PL.isfinite().all(), found_PL, 0.0)

    def _keep(self, number: int, weight: Tensor) -> None:
        """Hold on to the gradient of a weight, which the optimizer clears before ``step``.

        Clipping and unscaling act in place, so this one has seen them.
        """
        self._gradients[number] = weight.grad


def _derivatives(change: WeightChange, now: RuleParameters) -> Tensor:
    """Derivatives of ``eta * dW`` in the order of ``RuleParameters``, (P, U, K)."""
    by_tau = [now.eta * change.by_tau_plus_UK, now.eta * change.by_tau_minus_UK]
    by_amplitude = [now.eta * change.plus_UK, -now.eta * change.minus_UK]
    return torch.stack([change.total(now), *by_tau, *by_amplitude])

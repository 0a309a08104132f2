"""Elastic weight consolidation: weights that earlier tasks depend on are held near their values."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

_MOST = 1e30  # of lr x strength x Fisher: more pulls no harder, and would not stay finite
_ON_PLASTICITY = 0.01  # share of the strength that holds fast weights
_SAVED = ("fisher", "running", "anchor", "tasks", "refreshed")


class Consolidation:
    """Online EWC with a proximal step, which cannot diverge however large ``strength`` is.

    After every task earlier Fisher information is multiplied by ``decay``. With ``normalise`` that
    of every task is scaled to mean 1.
    """

    def __init__(
        self, model: nn.Module, strength: float = 1e3, decay: float = 0.9, normalise: bool = False
    ) -> None:
        named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._names = list(named)
        self._weights: list[Tensor] = list(named.values())
        self.strength, self.decay, self.normalise = strength, decay, normalise
        self.fisher = [torch.zeros_like(p, requires_grad=False) for p in self._weights]
        self.running = [value.clone() for value in self.fisher]
        self.anchor = [p.detach().clone() for p in self._weights]
        self.tasks = self.refreshed = 0

    @torch.no_grad()
    def refresh(self, fisher: Mapping[str, Tensor]) -> None:
        """Add to the running estimate of the Fisher information of the task in training."""
        self._follow()
        torch._foreach_add_(self.running, [fisher[name] for name in self._names])
        self.refreshed += 1

    @torch.no_grad()
    def task_ends(self, fisher: Mapping[str, Tensor]) -> None:
        """Take the mean estimate of the task, this last one included; anchor the weights here."""
        self.refresh(fisher)
        scale = self.running[0].new_ones(()) / self.refreshed
        if self.normalise:
            total = torch.stack([value.sum() for value in self.running]).sum()
            scale = sum(value.numel() for value in self.running) / total.clamp(min=1e-30)
        torch._foreach_mul_(self.fisher, self.decay)
        torch._foreach_add_(self.fisher, torch._foreach_mul(self.running, scale))
        torch._foreach_zero_(self.running)
        torch._foreach_copy_(self.anchor, self._weights)
        self.tasks, self.refreshed = self.tasks + 1, 0

    @torch.no_grad()
    def step(self, lr: float | Tensor, allowed: Tensor | bool = True) -> None:
        """Call after an optimizer step: weight <- (weight + w anchor) / (1 + w), w = lr lambda F.

        Nothing moves before the end of the first task, nor where ``allowed`` is False because the
        optimizer step was skipped.
        """
        if not self.tasks:
            return
        self._follow()
        pull = torch._foreach_mul(self.fisher, lr * self.strength)
        torch._foreach_clamp_max_(pull, _MOST)
        pull = torch._foreach_div(pull, torch._foreach_add(pull, 1.0))
        torch._foreach_mul_(pull, allowed if isinstance(allowed, Tensor) else float(allowed))
        torch._foreach_lerp_(self._weights, self.anchor, pull)

    @torch.no_grad()
    def penalty(self) -> Tensor:
        """(lambda / 2) sum F (weight - anchor)^2, for the record: no loss contains it."""
        self._follow()
        squares = torch._foreach_pow(torch._foreach_sub(self._weights, self.anchor), 2)
        terms = torch._foreach_mul(squares, self.fisher)
        sums = torch._foreach_norm(terms, 1)  # none is below 0
        return 0.5 * self.strength * torch.stack(sums).sum()

    def protection(self, name: str) -> Tensor:
        """What plasticity beside parameter ``name`` is multiplied by: 1 / (1 + 0.01 lambda F)."""
        held = self.fisher[self._names.index(name)]
        return 1.0 / (1.0 + _ON_PLASTICITY * self.strength * held)

    def _follow(self) -> None:
        """Be on the device that the model has been moved to."""
        if self.anchor[0].device == self._weights[0].device:
            return
        for kept in (self.fisher, self.running, self.anchor):
            kept[:] = [v.to(p.device) for v, p in zip(kept, self._weights, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Fisher information, its running estimate, anchors and counts."""
        return {name: getattr(self, name) for name in _SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; weights of other shapes are an error."""
        if [v.shape for v in state["anchor"]] != [p.shape for p in self._weights]:
            raise HoldfastError(
                f"consolidation: {len(state['anchor'])} saved weights do not fit the "
                f"{len(self._weights)} of this model; resume with the settings of the saved run."
            )
        for name, value in copy.deepcopy({name: state[name] for name in _SAVED}).items():
            setattr(self, name, value)

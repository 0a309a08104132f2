"""The form of an optimizer: switched once to a faster one, or to one that can skip a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ..actions import switch_to_fused


class OptimizerForm:
    """Looks at an optimizer once, and again after its state was loaded.

    Args:
        about: which optimizer it is, for the record.
        notes: for the record.
        may_switch: whether optimizers may be given another form.
    """

    def __init__(
        self,
        about: Mapping[str, Any],
        notes: list[tuple[str, dict[str, Any]]],
        *,
        may_switch: bool,
    ) -> None:
        self._about, self._notes, self._may_switch = about, notes, may_switch
        self._seen = 0, 0

    def on_host(self, optimizer: Optimizer, grads: list[Tensor]) -> None:
        """The best one where the host decides."""
        if self._may_switch and self._is_new(optimizer):
            switched = switch_to_fused.to_foreach(optimizer, grads)
            self._note("switched_to_foreach" if switched else "", "")

    def on_device(self, optimizer: Optimizer, grads: list[Tensor]) -> bool:
        """The best one where a device decides; whether it is a fused one."""
        fused = switch_to_fused.is_fused(optimizer)
        if not fused and self._is_new(optimizer):
            may = self._may_switch
            self._note(*switch_to_fused.to_best_form(optimizer, grads, allowed=may))
            fused = switch_to_fused.is_fused(optimizer)
        return fused

    def _is_new(self, optimizer: Optimizer) -> bool:
        """True once, after loading a state, which makes new groups, and with another group."""
        groups = id(optimizer.param_groups), len(optimizer.param_groups)
        new, self._seen = self._seen != groups, groups
        return new

    def _note(self, kind: str, why: str) -> None:
        if kind:
            self._notes.append((kind, {**self._about, "why": why} if why else {**self._about}))

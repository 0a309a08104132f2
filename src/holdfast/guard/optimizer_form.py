"""The form of an optimizer: switched once to a faster one, or to one that can skip a step."""

from __future__ import annotations

from torch import Tensor
from torch.optim import Optimizer

from ..actions import switch_to_fused
from ..records import Kind
from ..records.steps import Switched, SwitchedToForeach


class OptimizerForm:
    """Looks at an optimizer once, and again after its state was loaded.

    Args:
        index: of the optimizer.
        cls: name of its class.
        notes: for the record.
        may_switch: whether optimizers may be given another form.
    """

    def __init__(
        self,
        index: int,
        cls: str,
        notes: list[Kind],
        *,
        may_switch: bool,
    ) -> None:
        self._index, self._cls = index, cls
        self._notes, self._may_switch = notes, may_switch
        self._seen = 0, 0

    def on_host(self, optimizer: Optimizer, grads: list[Tensor]) -> None:
        """The best one where the host decides."""
        new = self._may_switch and self._is_new(optimizer)
        if new and switch_to_fused.to_foreach(optimizer, grads):
            self._note(SwitchedToForeach)

    def on_device(self, optimizer: Optimizer, grads: list[Tensor]) -> bool:
        """The best one where a device decides; whether it is a fused one."""
        fused = switch_to_fused.is_fused(optimizer)
        if not fused and self._is_new(optimizer):
            may = self._may_switch
            form, why = switch_to_fused.to_best_form(optimizer, grads, allowed=may)
            if form is not None:
                self._note(form, why)
            fused = switch_to_fused.is_fused(optimizer)
        return fused

    def _is_new(self, optimizer: Optimizer) -> bool:
        """True once, after loading a state, which makes new groups, and with another group."""
        groups = id(optimizer.param_groups), len(optimizer.param_groups)
        new, self._seen = self._seen != groups, groups
        return new

    def _note(self, form: type[Switched], why: str = "") -> None:
        self._notes.append(form(opt=self._index, cls=self._cls, why=why))

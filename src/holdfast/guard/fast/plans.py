"""Plans of the fast paths: what holds for the steps of an optimizer until something changes."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from ..optimizer_guard import OptimizerGuard, parameters_of


@dataclass(slots=True)
class StepPlan:
    """What both fast paths have to know."""

    optimizer: weakref.ref[Optimizer]
    guard: OptimizerGuard
    groups: int
    """Loading a state makes a new list of groups."""
    clips: bool
    """Whether the script clips between backward and step."""
    every: int
    """On multiples of this something is measured that is not on others."""


P = TypeVar("P", bound=StepPlan)


class Plans(Generic[P]):
    """Plans by optimizer."""

    def __init__(self) -> None:
        self.known: dict[int, P] = {}
        """By the id of the optimizer."""
        # By the first of the parameters that are clipped together.
        self._clipped: dict[int, P] = {}

    def keep(self, optimizer: Optimizer, plan: P, *, clipped: bool) -> None:
        """A plan for the next steps; ``clipped``: it is asked for when the script clips, too."""
        self.known[id(optimizer)] = plan
        if clipped:
            self._clipped[id(parameters_of(optimizer)[0])] = plan

    def of(self, optimizer: Optimizer) -> P | None:
        """The plan of an optimizer whose groups are those it was made with."""
        plan = self.known.get(id(optimizer))
        if plan is None or plan.optimizer() is not optimizer:
            return None
        return plan if id(optimizer.param_groups) == plan.groups else None

    def clipping(self, parameters: Sequence[Tensor]) -> tuple[P, Optimizer] | None:
        """The plan for parameters about to be clipped, if they are all of one optimizer."""
        plan = self._clipped.get(id(parameters[0])) if parameters else None
        optimizer = None if plan is None else plan.optimizer()
        if plan is None or optimizer is None:
            return None
        own = parameters_of(optimizer)
        if len(own) != len(parameters) or not all(map(operator.is_, own, parameters)):
            return None
        return plan, optimizer

    def forget(self, optimizer: Optimizer | None = None) -> None:
        """Something changed, for one optimizer or for all."""
        if optimizer is None:
            self.known.clear()
            self._clipped.clear()
        elif (plan := self.known.pop(id(optimizer), None)) is not None and plan.clips:
            self._clipped = {key: one for key, one in self._clipped.items() if one is not plan}

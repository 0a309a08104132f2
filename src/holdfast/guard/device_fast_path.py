"""Fast path for ordinary steps that are decided on a device.

The host has nothing to decide there, but the full path asks some forty questions before it launches
the kernel that does, and in a healthy run none of the answers changes: which parameters there are,
whether the optimizer is fused, who judges, who skips. They are asked once, after a step on the
full path; the steps that follow look only at what can change between two steps, and in any doubt
take the full path. Both launch the same kernels and write the same rows, which a test compares.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat

import torch
from torch.optim import Optimizer

from ..actions import switch_to_fused
from ..diagnosis.nonfinite.investigation import Investigation
from ..probes import learning_rate
from ..probes._host_norms import plain
from ..probes.loss import Losses
from ..probes.ranks import ranks
from ..probes.step_record import StepRecord
from ..probes.updates import EVERY as UPDATES_EVERY
from ..recovery.rollback import Recovery
from .kernel_cost import EVERY as COST_EVERY
from .optimizer_guard import OptimizerGuard, grad_of, parameters_of
from .step_writer import StepWriter

Opened = tuple[OptimizerGuard, StepRecord]


@dataclass(slots=True)
class _Plan:
    """What holds for the steps of one optimizer until something changes."""

    optimizer: Callable[[], Optimizer | None]
    guard: OptimizerGuard
    groups: int
    """Loading a state makes a new list of groups."""
    count: int
    """How many groups there are."""
    device: torch.device
    fused: bool
    every: int
    """On multiples of this something is measured that is not on others."""


class DeviceFastPath:
    """Plans by optimizer."""

    def __init__(
        self, writer: StepWriter, investigation: Investigation, recovery: Recovery
    ) -> None:
        self._writer = writer
        self._investigation, self._recovery = investigation, recovery
        self._plans: dict[int, _Plan] = {}

    def open(
        self, optimizer: Optimizer, losses: Losses, decides: Callable[[], bool]
    ) -> Opened | None:
        """Launch what decides about the next step; None when it must take the full path."""
        plan = self._plans.get(id(optimizer))
        if plan is None or not losses.passes or not self._holds(plan, optimizer):
            return None
        guard, writer = plan.guard, self._writer
        parameters = parameters_of(optimizer)
        grads = list(map(grad_of, parameters))
        if len(grads) != len(guard.positions) or any(map(operator.is_, grads, repeat(None))):
            return None
        if grads[0].requires_grad or grads[0].device != plan.device:
            return None
        record = StepRecord(writer.number(guard), guard.index)
        row = record.row
        rate = optimizer.param_groups[0].get("lr")
        row["lr"] = rate if type(rate) is float else learning_rate.read(optimizer)
        row["opt"], row["skipped"] = float(guard.index), 0.0
        record.layers, record.positions, record.planned = len(grads), guard.positions, True
        guard.decide_on_device(
            optimizer, record, grads, losses, plan.device, fused=plan.fused, decides=decides()
        )
        return guard, record

    def _holds(self, plan: _Plan, optimizer: Optimizer) -> bool:
        """Whether everything is as it was when the plan was made."""
        guard, writer, investigation = plan.guard, self._writer, self._investigation
        groups = optimizer.param_groups
        return (
            plan.optimizer() is optimizer
            and id(groups) == plan.groups
            and len(groups) == plan.count
            and writer.upcoming(guard) % plan.every != 0
            and not writer.suspicious
            and not guard.detect_only
            and not guard.skip.armed
            and not investigation.alert
            and not investigation.replaying
            and not self._recovery.awaits_step
            and not self._recovery.replay.running
            and guard.outliers.passive
            and ranks() == 1
        )

    def forget(self, optimizer: Optimizer | None = None) -> None:
        """Something changed, for one optimizer or for all: the next step takes the full path."""
        if optimizer is None:
            self._plans.clear()
        else:
            self._plans.pop(id(optimizer), None)

    def learn(self, optimizer: Optimizer, guard: OptimizerGuard, record: StepRecord) -> None:
        """After a step on the full path: decide whether the next ones may take the fast path."""
        if record.late or record.told_to or record.scaled:
            return
        if guard.whole is not None or guard.detect_only or guard.notes or not guard.announced:
            return
        parameters = parameters_of(optimizer)
        grads = list(map(grad_of, parameters))
        if not grads or len(guard.positions) != len(grads) or any(g is None for g in grads):
            return
        # Whatever is not dense and real is unwrapped on the full path.
        device = grads[0].device
        if plain(grads) is not grads or not all(g.device == device for g in grads):
            return
        writer = self._writer
        sampled = (COST_EVERY, writer.often(UPDATES_EVERY), writer.often(writer.parameters_every))
        self._plans[id(optimizer)] = _Plan(
            weakref.ref(optimizer),
            guard,
            id(optimizer.param_groups),
            len(optimizer.param_groups),
            device,
            switch_to_fused.is_fused(optimizer),
            math.gcd(*sampled),
        )

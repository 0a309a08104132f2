"""Fast path for ordinary steps that are decided on a device.

The host has nothing to decide there, but the full path asks some forty questions before it launches
the kernel that does, and in a healthy run none of the answers changes: which parameters there are,
whether the optimizer is fused, who judges, who skips. They are asked once, after a step on the
full path; the steps that follow look only at what can change between two steps, and in any doubt
take the full path. Both launch the same kernels and write the same rows, which a test compares.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...actions import switch_to_fused
from ...diagnosis.nonfinite.investigation import Investigation
from ...probes import learning_rate
from ...probes.host_norms import plain
from ...probes.loss import Losses
from ...probes.presence import present
from ...probes.ranks import ranks
from ...probes.step_record import StepRecord
from ...probes.updates import EVERY as UPDATES_EVERY
from ...recovery.rollback import Recovery
from ..grad_scaler import found_by
from ..kernel_cost import EVERY as COST_EVERY
from ..norms_before_clip import NormsBeforeClip
from ..optimizer_guard import OptimizerGuard, grad_of, parameters_of
from ..step_writer import StepWriter
from .device_launch import DeviceLaunch
from .plans import Plans, StepPlan

Opened = tuple[OptimizerGuard, StepRecord]


@dataclass(slots=True)
class DevicePlan(StepPlan):
    """What holds for the steps of an optimizer that are decided on a device."""

    count: int
    """How many groups there are."""
    positions: Sequence[int]
    """Of the parameters that have gradients."""
    device: torch.device
    fused: bool
    scaled: bool
    launch: DeviceLaunch
    still_scaled: bool
    """Whether gradients still carry the scale of a scaler when the step begins."""


class DeviceFastPath:
    """Launches what decides about a step, as the one before did."""

    def __init__(
        self, writer: StepWriter, investigation: Investigation, recovery: Recovery
    ) -> None:
        self._writer = writer
        self._investigation, self._recovery = investigation, recovery
        self.plans = Plans[DevicePlan]()

    def open(
        self,
        optimizer: Optimizer,
        losses: Losses,
        decides: Callable[[], bool],
        scale: Tensor | None,
        early: NormsBeforeClip | None,
    ) -> Opened | None:
        """Launch what decides about the next step; None when it must take the full path.

        Args:
            optimizer: about to step.
            losses: since the last step.
            decides: says whether a bad loss alone makes the step bad.
            scale: of a GradScaler.
            early: what ``clip`` has measured, or the full path in its place.
        """
        # ``Plans.of``, written out, as much below: this is done in every step.
        plan = self.plans.known.get(id(optimizer))
        if plan is None or plan.optimizer() is not optimizer:
            return None
        if id(optimizer.param_groups) != plan.groups or (early is not None and not early.decided):
            return None
        grads = self._gradients(plan, optimizer, losses)
        if grads is None or (scale is not None) != plan.scaled:
            return None
        if early is not None and not early.fits(grads):
            return None
        # A forward pass between clipping and step may have changed them.
        if early is not None and early.state_of_buffers != plan.guard.buffers.state():
            return None
        loss_decides = decides() if early is None else early.loss_decides
        # Ranks decide another way, and a process group may appear at any time.
        if not loss_decides and ranks() > 1:
            return None
        guard = plan.guard
        record = StepRecord(self._writer.number(guard), guard.index)
        row = record.row
        rate = optimizer.param_groups[0].get("lr")
        row["lr"] = rate if type(rate) is float else learning_rate.read(optimizer)
        row["opt"], row["skipped"] = float(guard.index), 0.0
        record.layers, record.positions, record.planned = len(guard.layers), plan.positions, True
        record.losses_decide = loss_decides
        scaler = None if scale is None else guard.reported(optimizer, record, scale)
        plan.still_scaled = record.still_scaled
        if early is not None and early.on_device is not None:
            early.used = record.clipped = True
            measured, record.buffers = early.on_device, early.buffers
        else:
            measured, record.buffers = plan.launch.measure(
                *(grads, losses, plan.device, scaler),
                still_scaled=record.still_scaled,
                clipped=False,
                decides=loss_decides,
            )
        record.measured, record.acted = measured, True
        guard.skip.on_device(
            *(optimizer, measured.flag, record.positions, plan.device),
            fused=plan.fused,
            united=measured.pending,
        )
        return guard, record

    def clip(
        self,
        parameters: Sequence[Tensor],
        losses: Losses,
        decides: Callable[[], bool],
        scaler: Any,
    ) -> NormsBeforeClip | None:
        """The script is about to clip these: decide about the step now, by the same launch.

        Only where it clipped the parameters of one optimizer in the last step too, and stepped with
        them as they were left. Should it not step this time, its norm is one too many in the
        baseline.
        """
        found = self.plans.clipping(parameters)
        if found is None or self._writer.scaler.policy is not None:
            return None
        plan, optimizer = found
        if self.plans.of(optimizer) is not plan:
            return None
        grads = self._gradients(plan, optimizer, losses)
        if grads is None:
            return None
        reported = found_by(scaler, optimizer, plan.device) if plan.scaled else None
        if plan.scaled and reported is None:
            return None
        early = NormsBeforeClip(grads)
        early.decided, early.loss_decides = True, decides()
        early.on_device, early.buffers = plan.launch.measure(
            *(grads, losses, plan.device, reported),
            still_scaled=False,
            clipped=True,
            decides=early.loss_decides,
        )
        early.state_of_buffers = plan.guard.buffers.state()
        return early

    def _gradients(
        self, plan: DevicePlan, optimizer: Optimizer, losses: Losses
    ) -> list[Tensor] | None:
        """The gradients of the next step, where all is as it was; otherwise None."""
        guard, writer, investigation = plan.guard, self._writer, self._investigation
        groups = optimizer.param_groups
        if (
            not losses.passes
            or len(groups) != plan.count
            or (writer.training.iteration + (guard.index in writer.stepped)) % plan.every == 0
            or writer.suspicious
            or guard.detect_only
            or guard.skip.pending
            or investigation.alert
            or investigation.replaying
            or self._recovery.awaits_step
            or self._recovery.replay.running
            or guard.outliers.clipping
        ):
            return None
        parameters = groups[0]["params"] if plan.count == 1 else parameters_of(optimizer)
        grads = present(list(map(grad_of, parameters)), plan.positions)
        if not grads or grads[0].requires_grad or grads[0].device != plan.device:
            return None
        return grads

    def learn(self, optimizer: Optimizer, guard: OptimizerGuard, record: StepRecord) -> None:
        """After a step on the full path: decide whether the next ones may take the fast path."""
        if record.late or record.skip_ordered:
            return
        if guard.whole is not None or guard.detect_only or guard.notes or not guard.announced:
            return
        if ranks() > 1 or not guard.outliers.passive:
            return
        positions = guard.presence.positions
        grads = present(list(map(grad_of, parameters_of(optimizer))), positions)
        if not grads:
            return
        # Whatever is not dense and real is unwrapped on the full path.
        device = grads[0].device
        if plain(grads) is not grads or not all(g.device == device for g in grads):
            return
        writer = self._writer
        sampled = map(writer.often, (COST_EVERY, UPDATES_EVERY, writer.parameters_every))
        plan = DevicePlan(
            weakref.ref(optimizer),
            guard,
            id(optimizer.param_groups),
            record.clipped,
            math.gcd(*sampled),
            len(optimizer.param_groups),
            positions,
            device,
            switch_to_fused.is_fused(optimizer),
            record.scaled,
            DeviceLaunch(guard.norm_meter(device), guard.buffers, guard.outliers),
            record.still_scaled,
        )
        self.plans.keep(optimizer, plan, clipped=record.clipped and not record.still_scaled)

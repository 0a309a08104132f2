"""Fast path for ordinary CPU steps.

Most steps of a healthy run are like the one before: the same optimizer and parameters, finite
numbers near their baseline, nothing to be sampled. The full path repeats dozens of checks
whose results have not changed, with cold caches. The fast path makes them once, after a step on
the full path; the steps that follow make only the remaining checks, and in any doubt take the full
path. Both write the same rows, which a test compares.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.optim import Optimizer

from ...diagnosis.nonfinite.investigation import Investigation
from ...probes import learning_rate
from ...probes.host_norms import measure_on_host
from ...probes.loss import Losses
from ...probes.step_record import BLANK, StepRecord
from ...probes.updates import EVERY as UPDATES_EVERY
from ...recovery.rollback import Recovery
from ...suspicion import LOOK
from ..kernel_cost import EVERY as COST_EVERY
from ..norms_before_clip import NormsBeforeClip
from ..optimizer_guard import OptimizerGuard, grad_of, parameters_of
from ..step_writer import StepWriter
from .plans import Plans, StepPlan

Opened = tuple[OptimizerGuard, StepRecord]


@dataclass(slots=True)
class _Plan(StepPlan):
    buffers: bool
    row: dict[str, float]
    """What all rows have in common."""


class FastPath:
    """Decides about a step by what may have changed since the one before."""

    def __init__(
        self, writer: StepWriter, investigation: Investigation, recovery: Recovery
    ) -> None:
        self._writer = writer
        self._investigation, self._recovery = investigation, recovery
        self.plans = Plans[_Plan]()

    def open(
        self,
        optimizer: Optimizer,
        losses: Losses,
        scale: Tensor | None = None,
        early: NormsBeforeClip | None = None,
    ) -> Opened | None:
        """Decide about the next step; None when it must take the full path.

        Args:
            optimizer: about to step.
            losses: that the step is about.
            scale: of a GradScaler.
            early: norms from before the script clipped its gradients.
        """
        plan = self.plans.of(optimizer)
        if plan is None:
            return None
        guard, writer, investigation = plan.guard, self._writer, self._investigation
        groups = optimizer.param_groups
        if (
            writer.upcoming(guard) % plan.every == 0
            or writer.suspicious
            or not investigation.idle
            or investigation.replaying
            or self._recovery.awaits_step
        ):
            return None
        numbers = losses.numbers
        loss = numbers[0] if len(numbers) == 1 and not losses.values else _mean(losses)
        if not math.isfinite(loss):
            return None
        presence = guard.presence
        grads = presence.known(list(map(grad_of, parameters_of(optimizer))))
        if not grads or not grads[0].is_cpu or not presence.norms.easy(grads):
            return None
        reported = None if scale is None else guard.reported_by_scaler(optimizer, scale)
        if scale is not None and reported is None:
            return None
        if plan.buffers and not guard.buffers.are_finite():
            return None
        clipped = early is not None and early.fits(grads)
        reading = early.on_host if clipped and early is not None else None
        if reading is None:
            reading = presence.norms.read(grads, True)
        if reading.bad or not guard.outliers.baseline.is_ordinary(loss, reading.total):
            return None
        record = StepRecord(writer.number(guard), guard.index, plan.row.copy())
        record.is_ordinary = True
        record.positions, record.layers = presence.positions, len(guard.layers)
        record.reading = reading
        row = record.row
        rate = groups[0].get("lr")
        row["lr"] = rate if type(rate) is float else learning_rate.read(optimizer)
        row["loss"] = loss
        row["grad_norm"] = reading.total
        if reported is not None:
            row["scale"], row["scaler_skipped"] = reported
        row["loss_baseline"], row["loss_limit"], row["norm_baseline"], row["norm_limit"] = (
            guard.outliers.baseline.numbers
        )
        return guard, record

    def clip(self, parameters: Sequence[Tensor]) -> NormsBeforeClip | None:
        """The script is about to clip these: measure them, as in the last step."""
        found = self.plans.clipping(parameters)
        if found is None:
            return None
        plan, _ = found
        presence = plan.guard.presence
        grads = presence.known(list(map(grad_of, parameters)))
        if not grads or not grads[0].is_cpu or not presence.norms.easy(grads):
            return None
        early = NormsBeforeClip(grads)
        early.on_host, early.norms = measure_on_host(grads)
        return early

    def learn(self, optimizer: Optimizer, guard: OptimizerGuard, record: StepRecord) -> None:
        """After a step on the full path: decide whether the next ones may take the fast path."""
        writer = self._writer
        well = record.reading is not None and not (record.bad or record.outlier or record.late)
        if not well:
            self.plans.forget()
            return
        if record.measured is not None or guard.detect_only or record.still_scaled:
            return
        if guard.whole is not None:
            return  # the other ranks wait for its numbers
        if self._recovery.attentive or not guard.outliers.passive or not writer.at_ease(guard):
            return
        if not all(p.is_cpu for p in parameters_of(optimizer)):
            return
        row = BLANK | {
            "opt": float(guard.index),
            "skipped": 0.0,
            "grad_bad": 0.0,
            "grad_layer": -1.0,
            "loss_bad": 0.0,
            "outlier": 0.0,
            "clip": 1.0,
        }
        if guard.has_buffers:
            row |= {"buffer_bad": 0.0, "buffer_layer": -1.0}
        sampled = (LOOK, *map(writer.often, (COST_EVERY, UPDATES_EVERY)), *writer.samples())
        plan = _Plan(
            weakref.ref(optimizer),
            guard,
            id(optimizer.param_groups),
            record.clipped,
            math.gcd(*sampled),
            guard.has_buffers,
            row,
        )
        self.plans.keep(optimizer, plan, clipped=record.clipped)


def _mean(losses: Losses) -> float:
    """The loss of several backward passes; not finite where one is not, or not on the host."""
    read = losses.on_host()
    return math.nan if read is None or read[1] else read[0]

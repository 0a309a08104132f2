"""Guard of one optimizer: decides about each step and carries the decision out."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from ..actions import foreign_step, switch_to_fused
from ..actions.foreign_step import NOT_CALLED
from ..actions.restore_buffers import BufferKeeper
from ..actions.skip_update import StepSnapshot
from ..config import GuardSettings
from ..probes.gradients import DeviceReading, NormMeter, NormMeters
from ..probes.host_norms import plain
from ..probes.loss import Losses
from ..probes.model_state import largest_on_device, nonfinite_on_host
from ..probes.presence import Presence
from ..probes.step_record import StepRecord
from ..probes.updates import UpdateSizes
from ..records import Kind
from ..records.run import NotCovered
from ..records.steps import GuardedOptimizer
from .decision_place import DecisionPlace
from .norms_before_clip import NormsBeforeClip
from .optimizer_form import OptimizerForm
from .outliers import Outliers
from .pending_skip import FUSED, HIDDEN, SNAPSHOT, PendingSkip
from .sharded_norms import ShardedNorms
from .step_buffers import StepBuffers

DETECT = "detect only"


class OptimizerGuard:
    """Guard of one optimizer: its layers, how to skip a step, and its last decision."""

    def __init__(
        self,
        index: int,
        cls: str,
        settings: GuardSettings,
        buffers: BufferKeeper,
        norm_meters: NormMeters,
        outliers: Outliers,
    ) -> None:
        self.index = index
        self.cls = cls
        self.announced = False
        self.stepped = False
        self.layers: list[str] = []
        self.how = ""
        self.updates = UpdateSizes()
        self.outliers = outliers
        self.notes: list[Kind] = []
        self.detect_only = "" if settings.skip else "skipping is switched off"
        self._where = DecisionPlace(self.notes, device_path=settings.device_path)
        self._norm_meters = norm_meters
        self.buffers = StepBuffers(buffers, norm_meters, restores=settings.restore_buffers)
        self._form = OptimizerForm(index, cls, self.notes, may_switch=settings.fused)
        self.skip = PendingSkip()
        self.presence = Presence()
        # How many parameters there are, and what decides where ranks share them.
        self._learnt: tuple[int, ShardedNorms | None] = 0, None

    @property
    def whole(self) -> ShardedNorms | None:
        """The norms over all ranks that share its parameters; None where each has its own."""
        return self._learnt[1]

    # ------------------------------------------------------------------ before the step

    def before(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Tensor],
        record: StepRecord,
        losses: Losses,
        *,
        losses_decide: Callable[[], bool],
        scale: Tensor | None = None,
        early: NormsBeforeClip | None = None,
        look_at_parameters: bool = False,
        must_skip: bool = False,
        alone: bool = True,
    ) -> None:
        """Measure the gradients the optimizer is about to use, decide, and arm the skip.

        ``must_skip`` skips the step whatever they are; ``alone`` says that there is one rank.
        """
        if self.skip.pending:
            self.skip.settle(optimizer, None)
        record.layers = len(self.layers)
        grads = self.presence.learn(list(map(grad_of, parameters)))
        positions, norms = self.presence.positions, self.presence.norms
        if self.buffers.known:
            self.buffers.look()
        if len(parameters) != self._learnt[0]:
            self._learn(parameters)
        whole = self.whole
        if not grads and whole is None:
            if must_skip and not self.detect_only:
                self.skip.hide(optimizer)
            self.note_losses(record, losses)
            return
        easy = bool(grads) and norms.easy(grads)
        # Ranks that share parameters speak of the same ones, wherever the gradients are.
        record.positions = positions if whole is None else range(len(parameters))
        early = early if early is not None and early.fits(grads) else None
        record.clipped = early is not None
        if not easy:
            grads = plain(grads)
        looked_at = parameters if look_at_parameters else []
        if grads or whole is None:
            device = self._where.of(grads, positions, first=not self.how)
        else:
            device = self._where.at(whole.home)
        parts = None if whole is None else positions
        if device is None:
            reading = early.on_host if early is not None else None
            if reading is None:
                reading = norms.read(grads, easy)
            if whole is not None:
                refuses = bool(self.detect_only)
                reading, record.refused = whole.on_host(reading, positions, refuses=refuses)
                self._note_refused(record)
            record.see_gradients(reading)
            self.note_losses(record, losses)
            if not grads and reading.total == 0:
                return
            # Who decides is asked only where it matters.
            record.skip_ordered = must_skip
            record.losses_decide = must_skip or (record.loss_bad and losses_decide())
            self._look_on_host(optimizer, record, scale, looked_at)
            factor = record.row["scale"] if _still_scaled(optimizer) else 1.0
            if factor != 1.0 and record.reading is not None:
                record.see_gradients(record.reading.unscaled(factor))
            may_skip = not (self.detect_only or record.refused)
            if not record.bad and not record.late:
                self.outliers.judge(
                    record,
                    grads,
                    alone=alone,
                    clipped=early is not None,
                    scale=factor,
                    may_skip=may_skip,
                    parts=parts,
                )
            self._act_on_host(optimizer, record, grads, may_skip=may_skip)
        else:
            record.losses_decide = losses_decide()
            measured = early.on_device if early is not None else None
            norm_meter = self._norm_meters.of(device)
            buffers: list[Tensor] = []
            at_once = measured is None and not looked_at and whole is None
            if self.buffers.known and at_once:
                which, tensors = self.buffers.to_measure(device)
                if tensors and norm_meter.can_take(tensors, grads[0].dtype):
                    record.buffers, buffers = which, tensors
            extras = self._extras(record, looked_at, device)
            scaler = self.reported(optimizer, record, scale)
            unscaled = scale if record.still_scaled else None
            asked = self.outliers.question(
                device,
                alone=alone,
                clipped=early is not None,
                may_skip=not self.detect_only,
                scale=unscaled,
            )
            if measured is None and whole is None:
                measured = norm_meter.measure(
                    grads,
                    losses.on_device(device),
                    loss_decides=record.losses_decide,
                    extras=extras,
                    buffers=buffers,
                    asked=asked,
                    scaler=scaler,
                )
            else:
                if whole is not None:
                    if measured is None and grads:
                        loss = losses.on_device(device)
                        measured = norm_meter.measure(grads, loss, loss_decides=False, extras=None)
                    refuses = bool(self.detect_only)
                    measured = whole.on_device(norm_meter, measured, positions, refuses=refuses)
                assert measured is not None
                if asked is not None:
                    norm_meter.judge(measured, asked)
                if scaler is not None:
                    extras = [*norm_meter.apart(*scaler), *extras]
                if extras and isinstance(measured.row, Tensor):
                    measured.row = torch.cat([measured.row, *extras])
            record.measured = measured
            if not self.detect_only:
                self.outliers.clip_on_device(
                    measured, grads, unscaled, clipped=early is not None, parts=parts
                )
            if must_skip:
                record.skip_ordered = True
                measured.flag.fill_(1.0)
                if measured.pending is not None:
                    measured.pending.fill_(1.0)
            measured.hold()
            self._arm_on_device(optimizer, record, measured, grads, device)

    def _learn(self, parameters: Sequence[Tensor]) -> None:
        """Another list of parameters: ask whether ranks share them, in the first step with them."""
        self._learnt = len(parameters), None
        whole, why = ShardedNorms.of(parameters, f"{self.index} {self.cls}")
        self._learnt = len(parameters), whole
        if why:
            self.only_detect(why)

    def _note_refused(self, record: StepRecord) -> None:
        if record.refused and not self.detect_only and self.whole is not None:
            self.notes += self.whole.refusal()

    def _look_on_host(
        self,
        optimizer: Optimizer,
        record: StepRecord,
        scale: Tensor | None,
        parameters: Sequence[Tensor],
    ) -> None:
        if self.buffers.known:
            self.buffers.read(record)
        if scale is not None:
            found = optimizer.__dict__.get("found_inf")
            record.still_scaled = _still_scaled(optimizer)
            record.row["scale"] = scale.item()
            record.row["scaler_skipped"] = float(isinstance(found, Tensor) and found.item() > 0)
        record.bad = bool(record.reading and record.reading.bad) or record.losses_decide
        # After a closure has run the weights have moved: they say nothing about this step, unless
        # it is asked for.
        if parameters or (record.bad and not record.late):
            record.see_parameters(nonfinite_on_host(parameters_of(optimizer)))

    def _act_on_host(
        self, optimizer: Optimizer, record: StepRecord, grads: list[Tensor], *, may_skip: bool
    ) -> None:
        own = not foreign_step.is_foreign(type(optimizer))
        self.how = DETECT if self.detect_only else HIDDEN if own else NOT_CALLED
        if not (record.late or self.detect_only):
            self._form.on_host(optimizer, grads)
        if (record.bad or record.extreme) and may_skip:
            self.skip.hide(optimizer)
            record.acted = True
            record.row["skipped"] = 1.0

    def reported(
        self, optimizer: Optimizer, record: StepRecord, scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None] | None:
        """Scale of a GradScaler and what it has found, for the row; None without one."""
        if scale is None:
            return None
        record.scaled, record.still_scaled = True, _still_scaled(optimizer)
        found = optimizer.__dict__.get("found_inf")
        return scale, found if isinstance(found, Tensor) else None

    def _extras(
        self, record: StepRecord, parameters: Sequence[Tensor], device: torch.device
    ) -> list[Tensor]:
        """What is not measured for everybody on every step rides behind norms and loss."""
        extras: list[Tensor] = []
        if self.buffers.known and not record.buffers:
            record.buffers, largest = self.buffers.largest(device)
            if largest is not None:
                extras.append(largest)
        if parameters:
            record.parameters = len(parameters)
            extras.append(largest_on_device(parameters).to(device, non_blocking=True))
        return extras

    def _arm_on_device(
        self,
        optimizer: Optimizer,
        record: StepRecord,
        measured: DeviceReading,
        grads: list[Tensor],
        device: torch.device,
    ) -> None:
        if self.detect_only:
            self.how = DETECT
            return
        if not grads:
            return
        fused = self._form.on_device(optimizer, grads)
        if self.whole is not None and not fused and switch_to_fused.counts_on_host(optimizer):
            # Ranks learn of a skipped step at different times, and would compute differently.
            self.only_detect(f"{self.cls} counts its steps on the host")
            return
        self.how = FUSED if fused else SNAPSHOT
        record.acted = True
        self.skip.on_device(
            *(optimizer, measured.flag, self.presence.positions, device),
            fused=fused,
            united=measured.pending,
        )

    # ------------------------------------------------------------------ for the fast path

    def norm_meter(self, device: torch.device) -> NormMeter:
        """What measures its gradients there."""
        return self._norm_meters.of(device)

    @property
    def has_buffers(self) -> bool:
        """Whether there are buffers to be looked at in every step."""
        return bool(self.buffers.known)

    def reported_by_scaler(self, optimizer: Optimizer, scale: Tensor) -> tuple[float, float] | None:
        """Scale, and whether the scaler skips; None while gradients still carry the scale."""
        if _still_scaled(optimizer):
            return None
        found = optimizer.__dict__.get("found_inf")
        return scale.item(), float(isinstance(found, Tensor) and found.item() > 0)

    # ------------------------------------------------------------------ after the step

    def after(self, optimizer: Optimizer, record: StepRecord) -> None:
        """Finish what ``before`` armed; the optimizer is as the script knows it again."""
        if self._learnt[1] is not None:
            self._learnt[1].taken_part = False
        flag = record.measured.flag if record.measured is not None else None
        record.moved = self.skip.settle(optimizer, flag)
        self.buffers.settle(record, acts=not self.detect_only)

    def arrived(self, record: StepRecord) -> None:
        """The device row is on the host: undo the host counters of a skipped step."""
        self._note_refused(record)
        if record.skipped and record.moved:
            StepSnapshot.take_back(record.moved)
        record.moved = ()

    def measure_late(
        self,
        optimizer: Optimizer,
        record: StepRecord,
        losses: Losses,
        *,
        look_at_parameters: bool,
    ) -> None:
        """For closures that ran inside ``step()``: look at what they left behind."""
        was, self.detect_only = self.detect_only, self.detect_only or "its closure has run"
        self.before(
            optimizer,
            parameters_of(optimizer),
            record,
            losses,
            losses_decide=lambda: True,
            look_at_parameters=look_at_parameters,
        )
        self.detect_only = was

    # ------------------------------------------------------------------ details

    def note_losses(self, record: StepRecord, losses: Losses) -> None:
        """Fill the loss columns from losses that are on the host already."""
        read = losses.on_host()
        if read is not None:
            record.see_loss(*read)

    def only_detect(self, why: str) -> None:
        """From now on steps are observed, not skipped; ``why`` is reported to the user."""
        if not self.detect_only:
            self.detect_only = why
            self.notes.append(NotCovered(what="skipping a bad step", why=why))

    def description(self) -> GuardedOptimizer:
        """Description of this optimizer for the start of the run."""
        why = {
            DETECT: self.detect_only,
            HIDDEN: "the decision is known on the host before the step",
            NOT_CALLED: "its step is the script's own, and the decision is known before it",
            FUSED: "the kernel itself skips the step",
            SNAPSHOT: f"{self.cls} cannot skip by itself",
        }
        return GuardedOptimizer(
            opt=self.index,
            cls=self.cls,
            layers=tuple(self.layers),
            buffers=tuple(self.buffers.names),
            how=self.how,
            why=why[self.how],
        )


def parameters_of(optimizer: Optimizer) -> list[Parameter]:
    """All parameters of an optimizer, group by group."""
    groups = optimizer.param_groups
    return groups[0]["params"] if len(groups) == 1 else [p for g in groups for p in g["params"]]


grad_of: Callable[[Tensor], Tensor] = operator.attrgetter("grad")


def _still_scaled(optimizer: Optimizer) -> bool:
    """Whether gradients carry the scale of a GradScaler, which a fused kernel undoes itself."""
    return optimizer.__dict__.get("grad_scale") is not None

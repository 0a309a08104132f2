"""A burst: some steps in a row in which nothing but the numbers changes.

Between the kernels of a training every function of ours finds its code and its data out of the
processor's caches; there calls cost several times what they cost in a loop of their own. The fast
path on a device asks little and still makes some ninety. In a burst a step is only launched,
armed and noted, by the same kernels with the same arguments; the records of all its steps are made
when it is over. One begins after a step of the fast path where nothing is due for a while, and ends
early with whatever is not like the step before. Where several optimizers take turns, each of them
has its part in it, and the parts follow one another in a ring.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from itertools import chain
from time import perf_counter, time
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...actions.restore_buffers import SteadyBuffers
from ...probes import learning_rate
from ...probes.batches import Batch
from ...probes.comparable import Comparability
from ...probes.gradients import DeviceReading
from ...probes.loss import mean_of
from ...probes.norm_kernel import FlagPair, Repeat
from ...probes.norm_rows import Layout, PinnedRow
from ...probes.presence import present
from ...probes.ranks import ranks
from ...probes.step_record import StepRecord
from ...probes.timing import Phases
from ..batch_source import BatchSource
from ..fail_open import capturing, current_device, stream_of
from ..finite_loss import BY_A_NUMBER, FiniteLoss, Ready, only_part, place_of_call
from ..grad_scaler import Scaling, found_by
from ..norms_before_clip import state_of
from ..optimizer_guard import grad_of, parameters_of
from ..step_writer import StepWriter
from .device_fast_path import DevicePlan
from .prepared_update import STEPS

_STRIDED = torch.strided
_params_of: Callable[[dict[str, Any]], list[Tensor]] = operator.itemgetter("params")
_SCALED = {"found_inf", "grad_scale"}
"""What a GradScaler, or we, tell a fused optimizer."""


Unwritten = tuple[torch.dtype, int, None, None]
"""Dtype and device of losses that a closure hands to its optimizer: nobody writes them."""


Flags = tuple[Tensor, Tensor | None]
"""Of a bad step; of buffers that are not finite, where some move."""


Launched = tuple[PinnedRow, Flags, FlagPair, list[Tensor]]


class BurstPart(NamedTuple):
    """How an optimizer has stepped, and will in the iterations that follow."""

    plan: DevicePlan
    """Where the script clips it does so in every step, all gradients at once."""
    ready: Sequence[Ready] | Sequence[Unwritten]
    """What writes each of its losses, or that nobody does; empty where it uses those before."""
    places: Sequence[Hashable]
    """Where backward is called for each of them, where there are several optimizers."""
    passes: int
    """How many losses a step is about."""
    dtype: torch.dtype
    device: int
    """The number of theirs."""


class Noted(NamedTuple):
    """What is needed to make the record of a step."""

    step: int
    time: float
    rate: float
    pinned_row: PinnedRow
    flag: Tensor
    host: dict[str, float]
    batches: Sequence[Batch]
    changed: bool
    """Whether losses can be compared no longer, or can again."""


class StepBurst:
    """Steps of one fused optimizer with the same number of losses each.

    Args:
        optimizer: whose steps they are.
        burst_part: how it steps.
        noted: the steps of all optimizers that take turns.
        most: how many steps they may have together.
        repeat: launches what decides.
        buffers: that may move.
        scaling: knows which loss was scaled, and by whom.
        batch_source: of the loop.
        phases: its clock.
        comparability: of its losses.
    """

    __slots__ = (
        *("_buffers", "_comparability", "_early", "_batch_source", "_groups", "_loss", "_most"),
        *("_parameters", "_phases", "_repeat", "_scaling", "_trusted"),
        *("pending", "copies", "last", "next", "noted", "root", "burst_part"),
    )

    def __init__(
        self,
        optimizer: Optimizer,
        burst_part: BurstPart,
        noted: list[Noted],
        most: int,
        repeat: Repeat,
        buffers: SteadyBuffers,
        scaling: Scaling,
        batch_source: BatchSource,
        phases: Phases,
        comparability: Comparability,
    ) -> None:
        self.burst_part, self._most = burst_part, most
        self.next: StepBurst | None = None
        """Whose turn comes after this one, where there are several."""
        self.root: Any = None
        """On what backward is being called."""
        self._loss: Any = None
        self.copies: list[Tensor] = []
        """The losses of the step at work whose backward is over."""
        self.noted = noted
        groups = optimizer.param_groups
        # The groups and the parameters of each, which are lists of the script's.
        self._groups = groups, list(map(_params_of, groups))
        self._parameters: Sequence[Tensor] = parameters_of(optimizer)
        self._repeat, self._buffers, self._scaling = repeat, buffers, scaling
        self._batch_source, self._phases, self._comparability = batch_source, phases, comparability
        self._trusted = comparability.may_skip
        self.pending: tuple[PinnedRow, Flags, Tensor | None] | None = None
        """While a step is at work: where its row will be, the flags, what a scaler has found."""
        # Where the script clips: what was launched before that, how it has left the gradients, and
        # how often buffers were written by then.
        self._early: tuple[PinnedRow, Flags, FlagPair, Any, list[int]] | None = None
        self.last: list[Tensor] = []
        """The losses of the step before the next one of this optimizer."""

    def backward_begins(self, root: Any, finite_loss: FiniteLoss, frame: FrameType) -> bool:
        """Backward is called on a loss; False where it is not like the one before."""
        began = perf_counter()
        loss, node = root, root.grad_fn if type(root) is Tensor else None
        if node is not None and (made := self._scaling.made) is not None:
            of, loss = made
            if of() is not root or self._scaling.variable() is None:
                return False
            node = node.next_functions[0][0]
        if node is None or len(self.copies) == len(self.burst_part.ready):
            return False
        dtype, index, writer, _ = self.burst_part.ready[0]
        if (
            finite_loss.inside is not (writer is None)
            or self.root is not None
            or loss.dtype is not dtype
            or root.numel() != 1
            or not loss.get_device() == index == current_device()
            or root.layout is not _STRIDED
            or root._is_view()
            or (
                self.burst_part.places
                and place_of_call(frame) != self.burst_part.places[len(self.copies)]
            )
        ):
            return False
        part = None
        if writer is not None and node.name() in BY_A_NUMBER:
            made_of = finite_loss.parts(node, frame)
            part = only_part(loss, made_of) if made_of else None
            if made_of and part is None:
                return False
        self.root, self._loss = root, (loss, part)
        spent = perf_counter() - began
        self._phases.guard += spent
        self._phases.last += spent
        return True

    def backward_ended(self) -> bool:
        """Backward has freed its graph: write the loss; False while a graph is captured."""
        began = perf_counter()
        _, index, writer, last = self.burst_part.ready[len(self.copies)]
        if stream_of(index) and capturing(index):
            return False
        loss, part = self._loss
        if writer is None or last is None:
            self.copies.append(loss.detach())
        else:
            self.copies.append(writer.write(loss, last, part))
        self.root = self._loss = self._scaling.made = None
        spent = perf_counter() - began
        self._phases.guard += spent
        self._phases.last += spent
        return True

    def takes_closure(self, optimizer: Any) -> bool:
        """Whether a step of this optimizer, with a closure, may be like the one before."""
        fresh = not self.copies and self.root is None
        unwritten = bool(self.burst_part.ready) and self.burst_part.ready[0][2] is None
        return unwritten and fresh and self.burst_part.plan.optimizer() is optimizer

    def step_begins(self, optimizer: Any) -> bool:
        """Decide about a step; False where it is not like the one before."""
        began = perf_counter()
        (groups, lists), plan, scaling = self._groups, self.burst_part.plan, self._scaling
        index = self.burst_part.device
        if stream_of(index) and capturing(index):
            return False  # nothing of ours may run there
        if len(self.copies) != len(self.burst_part.ready) or plan.optimizer() is not optimizer:
            return False
        own = optimizer.__dict__
        if optimizer.param_groups is not groups:
            return False
        now = list(map(_params_of, groups))
        if len(now) != len(lists) or not all(map(operator.is_, now, lists)):
            return False
        parameters = now[0] if len(now) == 1 else list(chain.from_iterable(now))
        self._parameters = parameters
        # Of one that begins to move there may be no copy.
        sealed = None if self._early is None else self._early[4]
        if self._buffers.any and not self._buffers.same(sealed):
            return False
        if self._comparability.may_skip is not self._trusted or ranks() > 1:
            return False
        scale = None if scaling.scaler is None else scaling.use()
        if scale is not self._repeat.scale:
            return False
        found = own.get("found_inf")
        if scale is None:
            if own.keys() & _SCALED:
                return False
        elif (
            type(found) is not Tensor
            or found.get_device() != index
            or (own.get("grad_scale") is not None) is not plan.still_scaled
        ):
            return False
        if not plan.clips:
            launched = self._launch(found)
        elif self._early is not None:
            grads = present(list(map(grad_of, parameters)), plan.positions)
            same = grads is not None and self._early[3] == state_of(grads)
            launched = (*self._early[:3], grads) if same else None
        else:
            return False
        if launched is None:
            return False
        pinned_row, flags, united, grads = launched
        self._early = None
        if (known := STEPS.get(id(optimizer))) and (steps := known()):
            steps.grads, steps.more = grads, united[1]
        self.pending = pinned_row, flags, found
        own["found_inf"] = united[0]
        own.setdefault("grad_scale", None)
        spent = perf_counter() - began
        self._phases.guard += spent
        self._phases.last += spent
        return True

    def _launch(self, found: Tensor | None) -> Launched | None:
        """Measure and judge the gradients.

        Where the row will be, the flags, the first united with what a scaler has found (and what
        stands behind that), and the gradients.
        """
        grads = present(list(map(grad_of, self._parameters)), self.burst_part.plan.positions)
        if not grads or grads[0].requires_grad:
            return None
        addresses = list(map(Tensor.data_ptr, grads))
        losses = self.copies or self.last
        loss = losses[0] if len(losses) == 1 else mean_of(losses)
        new_pair = self._repeat.new_pair
        united = new_pair()
        flag, at = united[0], united[0].data_ptr()
        reported = at, at
        if found is not None:
            flag = new_pair()[0]
            reported, at = (found.data_ptr(), at), flag.data_ptr()
        bad_buffers = new_pair()[0] if self._buffers.moving else None
        flags = at, at if bad_buffers is None else bad_buffers.data_ptr()
        pinned_row = self._repeat.launch(grads, addresses, flags, loss.data_ptr(), reported)
        return None if pinned_row is None else (pinned_row, (flag, bad_buffers), united, grads)

    def clip_begins(self, parameters: Sequence[Tensor]) -> bool:
        """The script clips these: decide about the step; False where it did not before."""
        own, plan, optimizer = (
            self._parameters,
            self.burst_part.plan,
            self.burst_part.plan.optimizer(),
        )
        if not plan.clips or self._early is not None or optimizer is None:
            return False
        if len(self.copies) != len(self.burst_part.ready):
            return False
        if self._buffers.any and not self._buffers.same():
            return False
        if len(own) != len(parameters) or not all(map(operator.is_, own, parameters)):
            return False
        if self._comparability.may_skip is not self._trusted:
            return False
        found = None
        if plan.scaled:
            reported = found_by(self._scaling.last(), optimizer, plan.device)
            if reported is None or reported[0] is not self._repeat.scale:
                return False
            found = reported[1]
        launched = self._launch(found)
        self._early = None if launched is None else (*launched, self._buffers.seal())
        return launched is not None

    def clip_ends(self) -> None:
        """Clipping is over: nobody may touch the gradients from here on."""
        if self._early is not None:
            pinned_row, flags, united, grads, sealed = self._early
            self._early = pinned_row, flags, united, state_of(grads), sealed

    def step_ends(self, optimizer: Any, step: int) -> bool:
        """The step is over: note it; True while there may be another one."""
        began = perf_counter()
        assert self.pending is not None
        pinned_row, (flag, bad_buffers), _ = self.pending
        self.disarm()
        if bad_buffers is not None and self._buffers.settling is not None:
            start, about = self._buffers.settling
            start(flag.data_ptr(), bad_buffers.data_ptr(), *about)
        rate = self._groups[0][0].get("lr")
        if type(rate) is not float:
            rate = learning_rate.read(optimizer)
        loader_batches, fed, batches = self._batch_source.loader_batches, False, ()
        if loader_batches is not None:
            fed = bool(loader_batches.fresh)
            batches = loader_batches.step()
        self._batch_source.rng = None
        (self.next or self).last = self.copies or self.last
        own, self.copies = bool(self.burst_part.ready), []
        several = not own and self.burst_part.passes > max(1, len(batches))
        # It has changed at most what the next step asks it: then that one is the last.
        changed = self._comparability.stepped(
            step, self.burst_part.plan.guard.index, fed=fed, own=own, several=several
        )
        host = self._phases.take_idle()
        self.noted.append(Noted(step, time(), rate, pinned_row, flag, host, batches, changed))
        spent = perf_counter() - began
        self._phases.guard += spent
        self._phases.last += spent
        return len(self.noted) < self._most and not changed

    def disarm(self) -> None:
        """The optimizer is as the script knows it again."""
        pending, self.pending = self.pending, None
        optimizer = self.burst_part.plan.optimizer()
        if pending is None or optimizer is None:
            return
        if (known := STEPS.get(id(optimizer))) and (steps := known()):
            steps.grads = steps.more = None
        if pending[2] is not None:
            optimizer.__dict__["found_inf"] = pending[2]
        else:
            optimizer.__dict__.pop("found_inf", None)
            optimizer.__dict__.pop("grad_scale", None)

    def give_up(self, writer: StepWriter) -> None:
        """Where a step has raised nobody wants its numbers."""
        if self.pending is not None:
            pinned_row, *_ = self.pending
            self.disarm()
            writer.discard(pinned_row)
        if self._early is not None:
            writer.discard(self._early[0])
            self._early = None

    @property
    def layout(self) -> Layout:
        """Of the numbers that arrive."""
        return self._repeat.layout

    @property
    def measured_along(self) -> Sequence[int]:
        """Which buffers are measured in each step."""
        return self._buffers.which

    def record(self, noted: Noted) -> StepRecord:
        """The record of a step, as the fast path makes it."""
        plan, guard, repeat = self.burst_part.plan, self.burst_part.plan.guard, self._repeat
        record = StepRecord(noted.step, guard.index)
        row = record.row
        row["lr"], row["opt"], row["skipped"] = noted.rate, float(guard.index), 0.0
        row["backwards"] = self.burst_part.passes
        row.update(noted.host)
        record.layers, record.positions = len(guard.layers), plan.positions
        record.planned = record.acted = True
        record.losses_decide = repeat.decides
        record.clipped = plan.clips
        record.scaled, record.still_scaled = plan.scaled, plan.still_scaled
        record.time, record.batches = noted.time, noted.batches
        record.buffers = self._buffers.which
        record.measured = DeviceReading(
            *(noted.pinned_row, noted.flag, len(record.positions), True, repeat.layout),
            factor=repeat.factor,
        )
        return record

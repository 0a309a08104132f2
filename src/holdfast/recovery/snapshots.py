"""Snapshots of the whole state in host memory, a few steps apart, taken without waiting.

Each lives in one block of memory that is reused (pinned where the state lives on a GPU). There the
copies run on a stream of their own beside the next forward and backward pass; only the optimizer,
which changes what is being copied, waits for them, on the device. The best one so far is kept
longer than the others: a loss that rises slowly is noticed late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, cast

import psutil
import torch
from torch import Tensor

from ..checkpoint.training_state import TrainingState
from ..config import RollbackSettings
from ..probes.ranks import ranks
from ..records.recovery import SnapshotTotals
from ..shards import is_sharded, like, local
from .pinned_memory import BlockLayout, Room, plan
from .snapshot_pace import Pace

_NUMBERS = frozenset((int, float, bool))


@dataclass(slots=True)
class Snapshot:
    """One snapshot; ``held`` counts its readers."""

    step: int = -1
    tree: Any = None
    """The state, made of the views."""
    block: Tensor | None = None
    views: list[Tensor] = field(default_factory=list[Tensor])
    likes: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    beside: list[bool] = field(default_factory=list[bool])
    """Which tensors only the optimizer changes: they may be copied during a forward pass."""
    level: float = math.inf
    """The loss baseline when it was taken."""
    epoch: int = 0
    copied: torch.cuda.Event | None = None
    held: int = 0

    @property
    def ready(self) -> bool:
        """Whether its copies are complete; remembered, since a lost device cannot be asked."""
        if self.copied is not None and self.copied.query():
            self.copied = None
        return self.copied is None

    def wait(self) -> None:
        """Wait for copies that are under way."""
        if self.copied is not None:
            self.copied.synchronize()

    def state(self) -> Any:
        """The state, made of views of this block, once it is complete."""
        self.wait()
        return self.tree

    def release(self) -> None:
        """A reader is done."""
        self.held -= 1


class Snapshots:
    """Ring of snapshots.

    Args:
        settings: how many, how often, and what they may cost.
        least: how many there must be even so, for checkpoints.
    """

    def __init__(self, settings: RollbackSettings, least: int = 0) -> None:
        self.count = 0
        self.dropped = 0
        self.why_not = ""
        self._settings = settings
        self._slots = [Snapshot() for _ in range(max(settings.snapshots, least))]
        self._last = 0
        self.pace = Pace(settings)
        self._stream: torch.cuda.Stream | None = None
        self.pending: torch.cuda.Event | None = None
        """The copy that the optimizer has to wait for."""
        self._room: Room | None = None

    @property
    def bytes(self) -> int:
        """Host memory in use."""
        return sum(slot.block.numel() for slot in self._slots if slot.block is not None)

    @property
    def size(self) -> int:
        """Bytes of one; 0 before the first."""
        blocks = [slot.block.numel() for slot in self._slots if slot.block is not None]
        return max(blocks, default=0)

    def next_at(self, step: int) -> float:
        """The next step, this one or later, at which one should be taken; none without room."""
        if not self._slots or (self._room is not None and not self._room.ready):
            return math.inf
        every = self.pace.every
        if ranks() > 1:
            # By the count alone, so that all ranks have some of the same steps.
            return math.ceil(max(step, self._last + 1) / every) * every
        return self._last + every

    def totals(self) -> SnapshotTotals:
        """What they took, for the end of the run."""
        return SnapshotTotals(
            count=self.count,
            every=self.pace.every,
            ms=self.pace.seconds / max(1, self.count) * 1e3,
            bytes=self.bytes,
            dropped=self.dropped,
        )

    def close(self) -> None:
        """The run ends: no thread of ours may be left."""
        if self._room is not None:
            self._room.give_up()

    def due(self, step: int) -> bool:
        """Whether the next one should be taken now."""
        return step >= self.next_at(step)

    def take(
        self, training_state: TrainingState, step: int, level: float, epoch: int
    ) -> Snapshot | None:
        """Start copying; None when every slot is being read, memory is short or yet to be made."""
        began = time.perf_counter()
        if gathered(training_state):
            return None
        tree = training_state.state()
        tensors = list(_tensors_in(tree))
        slot = self._free_slot()
        room = time.perf_counter()
        if slot is None or not self._fits(slot, tensors, training_state):
            if self._room is not None:
                return None
            self.dropped += 1
            self._last = step
            return None
        room = time.perf_counter() - room
        # Without the live tensors, which would be kept alive.
        slot.tree = _with(tree, iter(slot.views))
        slot.step, slot.level, slot.epoch = step, level, epoch
        self._copy(slot, tensors)
        now = time.perf_counter()
        self.count += 1
        self._last = step
        # Room is made once for each slot: it says nothing about what the next one costs.
        self.pace.taken(step, now - began - room, now)
        return slot

    def aside(self, training_state: TrainingState, step: int) -> Snapshot:
        """A copy that is in nobody's way: of a state that may be wanted again in a moment."""
        tree = training_state.state()
        tensors = list(_tensors_in(tree))
        slot = Snapshot(step=step)
        self._make_room(slot, tensors, training_state)
        slot.tree = _with(tree, iter(slot.views))
        self._copy(slot, tensors)
        return slot

    def before(self, step: int) -> Snapshot | None:
        """The newest one taken before a step."""
        fitting = [s for s in self._slots if 0 <= s.step < step]
        return max(fitting, key=lambda s: s.step, default=None)

    def of(self, step: int | None) -> Snapshot | None:
        """The one taken after a step."""
        return next((s for s in self._slots if s.step == step), None)

    def best(self) -> Snapshot | None:
        """The one at which the loss was lowest."""
        taken = [s for s in self._slots if s.step >= 0]
        return min(taken, key=lambda s: (s.level, -s.step), default=None)

    def taken(self) -> list[Snapshot]:
        """All there are, the newest first."""
        return sorted((s for s in self._slots if s.step >= 0), key=lambda s: -s.step)

    def newest(self) -> Snapshot | None:
        """The last one taken."""
        return self.before(1 << 62)

    def clear(self) -> None:
        """Discard all snapshots: none fits any more."""
        self.forget_after(-1)

    def forget_after(self, step: int) -> None:
        """Discard the snapshots taken after a step."""
        for slot in self._slots:
            if slot.step > step:
                slot.step, slot.level = -1, math.inf
        self._last = step

    def wait(self) -> None:
        """The optimizer is about to change what is being copied: let the device finish first."""
        if self.pending is not None:
            ready = torch.cuda.Event(enable_timing=True)
            ready.record()
            torch.cuda.current_stream().wait_event(self.pending)
            self.pace.halted(ready, self.pending)
            self.pending = None

    # ------------------------------------------------------------------ details

    def _free_slot(self) -> Snapshot | None:
        free = [s for s in self._slots if s.held == 0 and s.ready]
        best = self.best()
        if len(self._slots) > 1:
            free = [s for s in free if s is not best] or free
        return min(free, key=lambda s: s.step, default=None)

    def _fits(self, slot: Snapshot, tensors: list[Tensor], training_state: TrainingState) -> bool:
        """Make the slot's block fit these tensors; they are the same ones on most steps."""
        if slot.likes == _likes(tensors):
            return True
        wanted = _plan(tensors)
        total = wanted.size
        free = psutil.virtual_memory().available
        own = 0 if slot.block is None else slot.block.numel()
        if self.bytes - own + total > self._settings.memory * free:
            self._shrink(slot, total, free)
            return False
        device = _gpu(tensors)
        if device is not None:
            if self._room is not None and self._room.plan != wanted:
                self._room.give_up(patience=0.0)
                self._room = None
            if self._room is None:
                self._room = Room(wanted, device)
            if not self._room.ready:
                return False
        self._make_room(slot, tensors, training_state)
        return True

    def _make_room(
        self, slot: Snapshot, tensors: list[Tensor], training_state: TrainingState
    ) -> None:
        wanted, device = _plan(tensors), _gpu(tensors)
        if device is None:
            slot.block = torch.empty(wanted.size, dtype=torch.uint8)
        else:
            room, self._room = self._room, None
            fits = room is not None and room.plan == wanted
            slot.block = (room if room and fits else Room(wanted, device)).take()
        slot.views, slot.likes = [], _likes(tensors)
        for tensor, at in zip(tensors, wanted.offsets, strict=True):
            raw = slot.block[at : at + _size(tensor)]
            slot.views.append(raw.view(tensor.dtype).view(tensor.shape))
        owned = _changed_by_optimizers(training_state) if device is not None else set[int]()
        slot.beside = [t.is_cuda and t.data_ptr() in owned for t in tensors]

    def _shrink(self, slot: Snapshot, total: int, free: int) -> None:
        """No memory for another one: go on with those there are."""
        self._slots = [s for s in self._slots if s is not slot]
        if not any(s.step >= 0 for s in self._slots):
            self._slots = []
            share = self._settings.memory
            self.why_not = (
                f"a copy of the state takes {total / 2**30:.1f} GiB; {free / 2**30:.1f} GiB of "
                f"host memory are free, of which rollback.memory={share:g} may be used"
            )

    def _copy(self, slot: Snapshot, tensors: list[Tensor]) -> None:
        slot.copied = None
        if not any(slot.beside):
            torch._foreach_copy_(slot.views, tensors, non_blocking=True)
            if any(t.is_cuda for t in tensors):
                slot.copied = torch.cuda.Event()
                slot.copied.record()
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        _copy_all(slot.views, tensors, [not beside for beside in slot.beside])
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            _copy_all(slot.views, tensors, slot.beside)
            slot.copied = self.pending = torch.cuda.Event(enable_timing=True)
            slot.copied.record(self._stream)


def _copy_all(views: list[Tensor], tensors: list[Tensor], which: list[bool]) -> None:
    """Copy some of the tensors, in one call."""
    into, out_of = list(compress(views, which)), list(compress(tensors, which))
    if into:
        torch._foreach_copy_(into, out_of, non_blocking=True)


def _tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of a state, in order: parts of those that are spread over ranks.

    Rows of numbers are not looked through.
    """
    if isinstance(tree, Tensor):
        yield local(tree)
    elif isinstance(tree, dict):
        for value in cast(dict[Any, Any], tree).values():
            yield from _tensors_in(value)
    elif _nested(tree):
        for value in tree:
            yield from _tensors_in(value)


def _with(tree: Any, copies: Iterator[Tensor]) -> Any:
    """The same state with copies in place of its tensors, spread as those are."""
    if isinstance(tree, Tensor):
        return like(tree, next(copies))
    if isinstance(tree, dict):
        return {key: _with(value, copies) for key, value in cast(dict[Any, Any], tree).items()}
    if _nested(tree):
        return type(tree)(_with(value, copies) for value in tree)
    return tree


def _nested(tree: Any) -> bool:
    if type(tree) not in (list, tuple):
        return False
    # Not the first one alone: some keep a count and a tensor in one list.
    return not _NUMBERS.issuperset(map(type, tree))


def _likes(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    return [(t.dtype, t.shape, t.device) for t in tensors]


def _gpu(tensors: list[Tensor]) -> torch.device | None:
    """Where they live, if not all on the host."""
    return next((t.device for t in tensors if t.is_cuda), None)


def _plan(tensors: list[Tensor]) -> BlockLayout:
    return plan([_size(tensor) for tensor in tensors])


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _changed_by_optimizers(training_state: TrainingState) -> set[int]:
    """Where weights and optimizer state lie: nothing but ``step()`` changes them."""
    found: set[int] = set()
    for optimizer in training_state.optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                found.update(local(t).data_ptr() for t in (parameter, *_tensors(state)))
    return found


def gathered(training_state: TrainingState) -> bool:
    """Whether a model holds whole parameters in place of the shards that its optimizer has.

    FSDP2 leaves some of them so after an evaluation, until the next backward pass.
    """
    groups = [group for one in training_state.optimizers for group in one.param_groups]
    shards = [p for group in groups for p in group["params"] if is_sharded(p)]
    models = training_state.models.values() if shards else ()
    held = {id(p) for model in models for p in model.parameters()}
    return any(id(p) not in held for p in shards)


def _tensors(state: Any) -> list[Tensor]:
    return [value for value in state.values() if isinstance(value, Tensor)]

"""Begin the record of a step and close it when the step is over, whoever decided about it."""

from __future__ import annotations

import sys
import time

from torch.optim import Optimizer

from ..probes import learning_rate
from ..probes.loss import Losses
from ..probes.step_record import StepRecord
from ..records.steps import Comparable
from .engine_state import EngineState
from .fail_open import EnginePart, attempt
from .optimizer_guard import OptimizerGuard


class StepRecords(EnginePart):
    """The first and the last thing that happens to a record before it is written.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._replays = state.settings.guard.replay
        self._training, self._writer, self._recovery = state.training, state.writer, state.recovery
        self._batch_source, self._window = state.batch_source, state.window
        self._investigation, self._watchers = state.investigation, state.watchers

    def begin(self, optimizer: Optimizer, guard: OptimizerGuard) -> StepRecord:
        """A step on the full path, or one that a scaler has skipped."""
        if not guard.stepped:
            attempt(self, "parting snapshot", self._recovery.live.first_step)
            self._training.followed.look()
        record = StepRecord(self._writer.number(guard), guard.index)
        row = record.row
        row["lr"], row["opt"], row["skipped"] = learning_rate.read(optimizer), guard.index, 0.0
        return record

    def close(self, guard: OptimizerGuard, record: StepRecord, losses: Losses) -> None:
        """The step is over: complete its record, hand it on and tell all who follow the steps."""
        record.time = time.time()
        row, window = record.row, self._window
        row["backwards"] = losses.passes
        if self.phases.idle:
            row.update(self.phases.take_idle())
        elif self.phases.on_device:
            record.timed = self.phases.take()
        else:
            row.update(self.phases.take_host())
        training, loader_batches, fed = self._training, self._batch_source.loader_batches, False
        if loader_batches is not None:
            fed = bool(loader_batches.fresh)
            record.batches = loader_batches.step()
        if training.memory.lost:  # before the contents of the batches are let go
            attempt(self, "memory", self._lost, record)
        followed = self._training.followed
        if followed.looking:
            attempt(self, "followed losses", self._tell_losses, guard, record, losses)
        elif record.step >= followed.due:
            followed.look()
        own = losses is window.losses and losses.passes > 0
        several = not own and losses.passes > max(1, len(record.batches))
        comparability = training.registry.comparability
        if comparability.stepped(record.step, guard.index, fed=fed, own=own, several=several):
            now = Comparable(holds=comparability.holds, why=comparability.why)
            attempt(self, "notes", training.record_at, record.step, now)
        window.previous, window.losses = losses, Losses(read=window.read)
        if window.early is not None:
            window.drop_early(self._writer)
        self._batch_source.rng = None
        watchers = self._watchers
        watchers.swallowed.batches = 0
        self._writer.close_step(guard, record, losses)
        if watchers.on:
            attempt(self, "watchers", watchers.step_ended, record, sys._getframe())
        elif record.step >= watchers.resumes:
            watchers.resume()
        if not self._investigation.idle:
            attempt(self, "investigation", self._investigation.step_ends)
        # A step of a fast path was not awaited.
        if not (record.planned or record.is_ordinary) and self._recovery.awaits_step:
            attempt(self, "recovery", self._recovery.after_step, guard, record)
        if training.memory.split.news:
            attempt(self, "memory", training.memory.tell, record.step)
        # In the midst of an iteration a graph may wait for the weights it was made with.
        read = loader_batches is not None and (fed or not loader_batches.spent)
        between = not read and not training.yet_to_step
        if between and self._recovery.due(training.iteration):
            attempt(self, "recovery", self._recovery.boundary, training.iteration, False)

    def _tell_losses(self, guard: OptimizerGuard, record: StepRecord, losses: Losses) -> None:
        reported = self._training.followed.step_ends(guard.index, record, losses)
        if reported is not None:
            self._training.record_at(record.step, reported)

    def _lost(self, record: StepRecord) -> None:
        """A step whose backward ran out of memory is over: its batches are handed out again."""
        loader_batches = self._batch_source.loader_batches
        # Where another optimizer steps on the same batch, or the loop has fetched ahead of it, the
        # step is skipped and no more.
        again = (
            loader_batches is not None
            and not loader_batches.ahead
            and len(self._training.registry) == 1
        )
        source = self._investigation.source if again and self._replays else None
        self._training.memory.step_ends(record.step, record.batches, source)

"""What follows from a bad step: it is explained, and recovery is told once its row is known."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType

from ..diagnosis.nonfinite import carried
from ..diagnosis.nonfinite.investigation import Investigation
from ..diagnosis.nonfinite.left_behind import left_behind
from ..probes.batches import Batch
from ..probes.step_record import StepRecord
from ..records.steps import LossReplaced
from ..recovery.rollback import Recovery
from .batch_source import BatchSource
from .fail_open import EnginePart, FailsOpen, attempt, fail_open
from .finite_loss import FiniteLoss
from .optimizer_guard import OptimizerGuard
from .step_window import StepWindow
from .training import GuardedTraining


class BadSteps(EnginePart):
    """Hands bad steps on.

    Args:
        owner: of the switches and of the clock.
        training: whose steps they are.
        recovery: looks at what was learned from a step.
        investigation: explains a step.
        finite_loss: what the script reads in place of a bad loss.
        batch_source: of the loop.
        window: of the step at work.
        explain: whether bad steps are explained.
    """

    def __init__(
        self,
        owner: FailsOpen,
        training: GuardedTraining,
        recovery: Recovery,
        investigation: Investigation,
        finite_loss: FiniteLoss,
        batch_source: BatchSource,
        window: StepWindow,
        *,
        explain: bool,
    ) -> None:
        super().__init__(owner)
        self._training, self._recovery, self._investigation = training, recovery, investigation
        self._finite_loss, self._batch_source, self._window = finite_loss, batch_source, window
        self._explain = explain
        # The last bad step that the host has seen in time, and how many in a row.
        self._last = -1
        self._in_a_row = 0
        self._skipped = False

    def seen(self, frame: FrameType, guard: OptimizerGuard, record: StepRecord) -> None:
        """A step that is about to be taken is bad; the host has seen it in time."""
        if self._explain:
            batches, _ = self._batch_source.here(self._window.losses.passes)
            self._investigate(frame, guard, record, batches)
            attempt(self, "investigation", self._look_for_carrier, frame, guard, record)

        if record.skipped and not self._skipped:
            self._skipped = True
            attempt(self, "notes", self._note_left_behind, frame)

    def known(self, guard: OptimizerGuard, record: StepRecord, late: bool) -> None:
        """The numbers of a step, bad or not, are on the host; ``late``: a device has decided."""
        if record.loss_bad and self._finite_loss.tell():
            self._training.record_at(record.step, LossReplaced(opt=guard.index))
        if late and record.bad and self._explain:
            # A step that was decided on the device turns out to have been bad.
            self._investigate(None, guard, record, record.batches)
        if self._recovery.concerns(record):
            attempt(self, "recovery", self._recovery.known, guard, record)

    def _look_for_carrier(
        self, frame: FrameType, guard: OptimizerGuard, record: StepRecord
    ) -> None:
        """Bad steps one after the other: something of the script may carry it on."""
        follows = 0 <= record.step - self._last <= 1
        self._in_a_row = self._in_a_row + 1 if follows else 1
        self._last = record.step
        if self._in_a_row != carried.AFTER:
            return
        found = carried.carries(frame, self._training.known_models())
        if found is not None:
            cause = found.replace(
                observed=self._training.iteration,
                opt=guard.index,
                origin=self._investigation.origin,
            )
            self._training.explained(record.step, cause)

    def _note_left_behind(self, frame: FrameType) -> None:
        for text in left_behind(frame, self._training.registry.seen_modules()):
            self._training.not_covered("the script's own state", text)

    @fail_open("investigation")
    def _investigate(
        self,
        frame: FrameType | None,
        guard: OptimizerGuard,
        record: StepRecord,
        batches: Sequence[Batch],
    ) -> None:
        blamed = int(record.row["grad_layer"])
        if not record.loss_bad and blamed < 0:
            return  # skipped because its batch was fed again, and nothing is wrong with it
        layer = None if record.loss_bad else guard.layers[blamed]
        # A loop that fetches ahead would use a batch fed again one iteration too late, and a
        # step that was taken must not be taken twice.
        batches = () if self._batch_source.ahead or not record.acted else batches
        self._investigation.step_is_bad(frame, guard.index, record.step, layer, batches)

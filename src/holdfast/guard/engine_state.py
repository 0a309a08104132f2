"""State of the guarded training in this process: what the hooks of the engine share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from ..config import Settings
from ..diagnosis.nonfinite.investigation import Investigation
from ..diagnosis.watchers import Watchers
from ..policy import Policy
from ..probes.timing import Phases
from ..recovery.last_state import LastState
from ..recovery.rollback import Recovery
from ..run import Recorder
from .bad_steps import BadSteps
from .batch_source import BatchSource
from .decisions import Decisions
from .fast.door import EngineParts, FastSteps
from .finite_loss import FiniteLoss
from .grad_scaler import Scaling
from .loop_position import LoopPosition
from .registry import OptimizerRegistry
from .step_window import StepWindow
from .step_writer import StepWriter
from .training import GuardedTraining


class EngineState:
    """Makes what the hooks work with, each with what it needs of the others.

    Args:
        settings: of the run.
        open_recorder: makes the recorder when training begins.
        fast: whether steps may be made cheaper; as HOLDFAST_FAST says where it is not given.
    """

    def __init__(
        self,
        settings: Settings,
        open_recorder: Callable[[], Recorder],
        *,
        fast: bool | None = None,
    ) -> None:
        self.settings = settings
        self.off: set[str] = set()
        self.phases = Phases()
        policy, guard = Policy.of(settings), settings.guard
        registry = OptimizerRegistry(settings, policy)
        self.training = GuardedTraining(
            registry, settings.quarantine, open_recorder, policy.lines(), split=guard.split
        )
        self.recovery = Recovery(settings, self.training, policy)
        self.last_state = LastState(settings.checkpoint, self.training, self.recovery)
        self.batch_source = BatchSource(self.training, keeps_rng=guard.restore_rng)
        # On CPU tensors a loss may be read by the host, unless a test forbids it.
        self.window = StepWindow(registry, read=not guard.device_path)
        self.scaling = Scaling()
        self.finite_loss = FiniteLoss(guard)
        self.investigation = Investigation(
            guard, self.training, lambda: self.batch_source.here(self.window.losses.passes)
        )
        bad_steps = self.bad_steps = BadSteps(
            *(self, self.training, self.recovery, self.investigation),
            *(self.finite_loss, self.batch_source, self.window),
            explain=guard.explain,
        )
        self.writer = StepWriter(settings, self.training, bad_steps.known)
        self.recovery.checkpoints.script.decisions = Decisions(
            self.writer, self.recovery, self.investigation, self.finite_loss
        )
        self.watchers = Watchers(settings, self.training, self.writer.budget)
        parts = EngineParts(
            *(self.writer, self.investigation, self.recovery, self.last_state, self.watchers),
            *(self.finite_loss, self.scaling, self.batch_source, self.window),
        )
        if fast is None:
            fast = os.environ.get("HOLDFAST_FAST") != "0"
        self.fast = FastSteps(self, parts, on=fast)
        self.position = LoopPosition(
            *(self, self.writer, self.recovery, self.investigation),
            *(self.window, self.fast),
        )

    def failed(self, where: str, error: Exception) -> None:
        """A part of holdfast failed: switch it off, restore everything, record it."""
        self.off.add(where)
        if where in ("guard", "burst"):
            self.fast.drop()
        if where == "guard":
            # Disarm what will not be finished. A failed investigation must leave the skip armed.
            for optimizer, guard in self.training.guards():
                with contextlib.suppress(Exception):
                    guard.skip.settle(optimizer, None)
        self.training.failure(where, error)

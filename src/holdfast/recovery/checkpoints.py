"""Automatic checkpoints of an unmodified script: its newest good snapshot, by clock and step."""

from __future__ import annotations

import math
import os
from pathlib import Path
from types import FrameType

from ..checkpoint.saver import Saver
from ..checkpoint.store import CheckpointStore
from ..checkpoint.training_state import TrainingState
from ..config import CheckpointSettings
from ..records.resuming import CheckpointResult
from ..resume.script import ScriptResume
from .damage import Damage
from .live_state import LiveState
from .snapshots import Snapshot
from .training import Training

_FIRST = 30.0
"""Seconds after which the first checkpoint of a script is due: most first tries end long before the
interval of the settings, and could not be gone on with."""
_RATE, _SHARE = 500e6, 0.01
"""Bytes per second that one is written with, cautiously, and the share of the time until then that
this may take."""


class AutomaticCheckpoints:
    """Decides when a snapshot goes to disk and passes it to the saver."""

    def __init__(
        self,
        settings: CheckpointSettings,
        training: Training,
        live: LiveState,
        damage: Damage,
        why_not: str = "",
    ) -> None:
        self.wanted = settings.minutes > 0 or settings.steps > 0
        """Whether snapshots go to disk by themselves."""
        self.bytes_per_second = 0.0
        """How fast the last one was written; 0.0 before the first."""
        self._saver = Saver(settings, training.run_folder, self._written)
        self._training = training
        self._live = live
        self.damage = damage
        """Tells good states from those that are not to be kept."""
        self.script = ScriptResume(training, self._state, why_not)
        """Makes them resumable."""

    def _written(self, step: int, result: CheckpointResult) -> None:
        if result.seconds:
            self.bytes_per_second = (result.bytes or 0) / result.seconds
        self._training.record_at(step, result)

    @property
    def next_step(self) -> float:
        """The step at which one is due whatever the clock says."""
        return self._saver.next_step

    def _state(self) -> TrainingState:
        self._live.look()
        return self._live.training_state()

    def due(self, step: int, size: int) -> str:
        """Why one of this ``size`` is due after this step; empty when it is not."""
        self._saver.tell_news()
        self.script.tell_hopeless(step)
        early = not self._saver.used and self.script.may_resume
        first = max(_FIRST, size / _RATE / _SHARE) if early else math.inf
        due = self._saver.due(step, first=first) if self.wanted else ""
        return "" if due and self.script.waits() else due

    def resumed(self, step: int) -> None:
        """The run goes on after so many steps."""
        self._saver.last_step = step

    def save(
        self, snapshot: Snapshot, kind: str, *, at: FrameType | None = None, steps: int = 0
    ) -> Path | None:
        """Have a snapshot written; returns at once.

        ``at`` is where the loop asks for its next batch, if the snapshot is of this very moment,
        after so many ``steps``.
        """
        resume = None if at is None else self.script.take(snapshot.step, steps, at)
        tree = snapshot.tree if resume is None else {**snapshot.tree, "resume": resume}
        snapshot.held += 1
        path = self._saver.save(
            tree,
            snapshot.step,
            kind,
            rank=self._training.rank,
            metrics={"loss": snapshot.level} if math.isfinite(snapshot.level) else {},
            meant=self.damage.meant(snapshot.tree),
            release=snapshot.release,
            ready=snapshot.wait,
            resume=resume is not None,
            needs=self.script.needed(resumable=resume is not None),
        )
        if resume is not None and path is not None:
            self.script.saved(path)
        return path

    def save_now(self, snapshot: Snapshot, kind: str) -> str:
        """Have a snapshot written and wait for it: the run is about to end. Its path, or ""."""
        path = self.save(snapshot, kind)
        self._saver.close()
        return os.fspath(path) if path is not None and path.exists() else ""

    def store(self) -> CheckpointStore | None:
        """Where checkpoints go, once none is being written; None while there is no folder."""
        return self._saver.store()

    def close(self) -> None:
        """Wait for what is being written."""
        self._saver.close()

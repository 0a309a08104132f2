"""Checkpoints of a run that knows nothing of us: its newest good snapshot, by the clock."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..checkpoint.shelf import FOLDER, Shelf
from ..checkpoint.tree import flatten, paths
from ..checkpoint.writer import BackgroundWriter
from ..config import CheckpointSettings
from .journal import Journal
from .shield import ranks
from .snapshots import Snapshot

# How long the end of a run waits for a checkpoint that is being written.
_PATIENCE = 120.0


class Vault:
    """Decides when a snapshot goes to disk and hands it to a thread that writes it."""

    def __init__(
        self,
        settings: CheckpointSettings,
        journal: Journal,
        buffers: Callable[[], Collection[str]],
    ) -> None:
        self.wanted = settings.minutes > 0 or settings.steps > 0
        self._settings = settings
        self._journal = journal
        self._writer: BackgroundWriter | None = None
        # What the writer's thread has to tell; the ring has one writer, and that is not it.
        self._news: deque[tuple[int, dict[str, Any]]] = deque()
        self._time = time.monotonic()
        self._step = 0
        self._buffers = buffers
        self._exempt: Collection[str] | None = None

    @property
    def next_step(self) -> float:
        """The step at which one is due whatever the clock says."""
        return self._step + self._settings.steps if self._settings.steps else math.inf

    def due(self, step: int) -> bool:
        """Whether it is time for one."""
        if self._news:
            self._tell()
        if not self.wanted:
            return False
        if self._settings.steps and step - self._step >= self._settings.steps:
            return True
        minutes = self._settings.minutes
        return minutes > 0 and time.monotonic() - self._time >= 60.0 * minutes

    def save(self, snapshot: Snapshot, step: int, level: float) -> None:
        """Have a snapshot written; returns at once."""
        self._time, self._step = time.monotonic(), step
        self._submit(snapshot, "step" if self._settings.steps else "time", level)

    def save_now(self, snapshot: Snapshot, kind: str, level: float) -> str:
        """Have a snapshot written and wait for it: the run is about to end. Its path, or ""."""
        path = self._submit(snapshot, kind, level)
        self.close()
        return os.fspath(path) if path is not None and path.exists() else ""

    def close(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            self._writer.close(_PATIENCE)
            self._writer = None
        self._tell()

    def _submit(self, snapshot: Snapshot, kind: str, level: float) -> Path | None:
        recorder = self._journal.recorder
        if recorder is None:
            return None
        if self._writer is None:
            given = self._settings.dir
            shelf = Shelf(Path(given) if given else recorder.run.path / FOLDER)
            self._writer = BackgroundWriter(
                shelf, self._settings, lambda kind, step, data: self._news.append((step, data))
            )
        metrics = {"loss": level} if math.isfinite(level) else {}
        meta = {"step": snapshot.step, "rank": recorder.rank, "world": ranks(), "metrics": metrics}
        skeleton, tensors = flatten(snapshot.tree)
        if self._exempt is None:
            self._exempt = _meant_infinite(skeleton, tensors, self._buffers())
        snapshot.held += 1
        return self._writer.submit(
            skeleton,
            tensors,
            meta,
            kind,
            snapshot.release,
            ready=snapshot.wait,
            exempt=self._exempt,
        )

    def _tell(self) -> None:
        while self._news:
            step, data = self._news.popleft()
            self._journal.tell("checkpoint", step, data)


def _meant_infinite(
    skeleton: Any, tensors: Sequence[Tensor], buffers: Collection[str]
) -> frozenset[str]:
    """Buffers of the first state that hold infinities: masks, no sign of poison later."""
    named = zip(paths(skeleton), tensors, strict=True)
    return frozenset(
        name
        for name, tensor in named
        if name in buffers and tensor.is_floating_point() and not bool(tensor.isfinite().all())
    )

"""The one path from a live state to a file: when a checkpoint is due, and who writes it.

The guard saves its newest good snapshot here, ``holdfast.watch`` the state of its loop. A thread
writes; what it has to say is kept until the training thread records it, because only that one may
write to the ring.

A state with tensors that are sharded over ranks (``DTensor``) is saved by all ranks together, each
its own part; every rank has to save the same steps then.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from holdfast.checkpoint.copying import copied
from holdfast.checkpoint.finite import NOTHING
from holdfast.checkpoint.store import FOLDER, CheckpointStore, Entry
from holdfast.checkpoint.tree import flatten
from holdfast.checkpoint.writer import BackgroundWriter, SharedSave
from holdfast.config import CheckpointSettings
from holdfast.records.resuming import CheckpointResult
from holdfast.shards import is_sharded

if TYPE_CHECKING:
    from holdfast.checkpoint.sharded.agreement import Ranks
    from holdfast.checkpoint.sharded.saving import Share

Record = Callable[[int, CheckpointResult], object]

# How long the end of a run waits for a checkpoint that is being written.
LAST_WAIT = 120.0


class Saver:
    """Saves the states of one process.

    Args:
        settings: how often, where, and how many are kept.
        run_folder: the folder of the run, None while there is none.
        record: takes the step of a checkpoint, and what became of it.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        run_folder: Callable[[], Path | None],
        record: Record,
    ) -> None:
        self.last_step = 0
        """The step that was saved last, or at which the run began."""
        self._settings = settings
        self._run_folder = run_folder
        self._record = record
        self._time = time.monotonic()
        self._writer: BackgroundWriter | None = None
        self._ranks: Ranks | None = None
        self._news: deque[tuple[int, CheckpointResult]] = deque()

    @property
    def next_step(self) -> float:
        """The step at which one is due whatever the clock says."""
        return self.last_step + self._settings.steps if self._settings.steps else math.inf

    @property
    def used(self) -> bool:
        """Whether anything was saved so far."""
        return self._writer is not None

    @property
    def idle(self) -> bool:
        """Whether nothing is being written."""
        return self._writer is None or self._writer.wait(0)

    def due(self, step: int, *, sharded: bool = False, first: float = math.inf) -> str:
        """Why a checkpoint is due after this step: ``step``, ``time`` or "" when it is not.

        Ranks whose state is ``sharded`` get the same answer after the same step. The first one is
        due after ``first`` seconds, where that is sooner than by the settings.
        """
        if self._settings.steps and step - self.last_step >= self._settings.steps:
            return "step"
        minutes = self._settings.minutes
        seconds = 60.0 * minutes if self.used else min(60.0 * minutes, first)
        why = "time" if minutes and time.monotonic() - self._time >= seconds else ""
        return self._shared_save().due(step, why) if sharded and minutes else why

    def save(
        self,
        tree: Any,
        step: int,
        kind: str,
        *,
        rank: int = 0,
        metrics: Mapping[str, float] | None = None,
        meant: Mapping[str, Tensor | None] = NOTHING,
        copy: bool = False,
        release: Callable[[], object] = lambda: None,
        ready: Callable[[], object] = lambda: None,
        resume: bool = False,
        needs: Sequence[str] = (),
    ) -> Path | None:
        """Have a state written; where it will be, None when it will not. Never waits.

        Args:
            tree: the state.
            step: of the run, when it was taken.
            kind: why it is saved.
            rank: of this process.
            metrics: what is known of it; decides which checkpoints are the best.
            meant: NaN and infinities that are no damage, as ``first_nonfinite`` takes them.
            copy: the tensors are live ones and will change.
            release: called once when the tensors are no longer read.
            ready: called before they are read, for copies that are under way.
            resume: an unmodified script can be resumed from it.
            needs: names of the files beside it that a resume from it reads, too.
        """
        self.last_step, self._time = step, time.monotonic()
        writer = self._opened()
        if writer is None:
            release()
            return None
        skeleton, tensors = flatten(tree)
        shared_save = None
        if any(map(is_sharded, tensors)):
            share, shared_save = self._share(tree, step)
            tensors, rank = share.tensors, share.rank
        if copy:
            tensors, ready = copied(tensors)
        meta = {
            "step": step,
            "rank": rank,
            "world": int(os.environ.get("WORLD_SIZE", "1")),
            "metrics": dict(metrics or {}),
            **({"resume": True} if resume else {}),
            **({"needs": list(needs)} if needs else {}),
            **writer.store.whose,
        }
        return writer.submit(
            skeleton,
            tensors,
            meta,
            kind,
            release,
            ready=ready,
            meant=meant,
            shared_save=shared_save,
        )

    def _share(self, tree: Any, step: int) -> tuple[Share, SharedSave]:
        """This rank's share of a state that is sharded over ranks."""
        # Not before it is needed: the planners behind it take a while to import.
        from holdfast.checkpoint.sharded.saving import share_of

        ranks = self._shared_save()
        share = share_of(tree, ranks)
        return share, SharedSave(ranks.begin(step), share.places)

    def _shared_save(self) -> Ranks:
        from holdfast.checkpoint.sharded.agreement import Ranks

        if self._ranks is None:
            self._ranks = Ranks.live()
        return self._ranks

    def wait(self) -> None:
        """Wait for what is being written."""
        if self._writer is not None:
            self._writer.wait(LAST_WAIT)

    def store(self) -> CheckpointStore | None:
        """Where checkpoints go, once none is being written; None while there is no folder."""
        self.wait()
        writer = self._opened()
        return None if writer is None else writer.store

    @property
    def metric(self) -> str:
        """What decides which is the best."""
        return self._settings.metric

    def best(self, rank: int = 0) -> Entry | None:
        """The best by the metric, proven whole, once everything is written."""
        writer = self._opened()
        if writer is None:
            return None
        writer.wait(LAST_WAIT)
        return writer.store.best(self.metric, self._settings.mode, rank=rank, proven=True)

    def tell_news(self) -> None:
        """Record what the thread has written, or could not write."""
        while self._news:
            self._record(*self._news.popleft())

    def close(self) -> bool:
        """Wait for what is being written and end; False when that takes too long."""
        writer, self._writer = self._writer, None
        done = writer is None or writer.close(LAST_WAIT)
        self.tell_news()
        return done

    def _opened(self) -> BackgroundWriter | None:
        if self._writer is None:
            folder, run = self._settings.dir, self._run_folder()
            if folder is not None:
                store = CheckpointStore(folder, whose=run)
            elif run is not None:
                store = CheckpointStore(run / FOLDER)
            else:
                return None
            self._writer = BackgroundWriter(
                store, self._settings, lambda *news: self._news.append(news)
            )
        return self._writer

"""Saving in the background: the training hands over a state in host memory and goes on.

One thread, one place in the queue and one more for the best by the metric. A failure (a full disk,
a folder that cannot be written, a poisoned state) is reported as data, never raised into the
training. Reports and ``release`` come from the writer's thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from holdfast.checkpoint.file import save
from holdfast.checkpoint.finite import NOTHING, first_nonfinite
from holdfast.checkpoint.record import WrittenCheckpoint
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tree import paths
from holdfast.config import CheckpointSettings
from holdfast.errors import CheckpointError
from holdfast.records.resuming import CheckpointResult

if TYPE_CHECKING:
    from holdfast.checkpoint.sharded.agreement import Save
    from holdfast.checkpoint.sharded.places import PartPlace

PERIODIC = ("step", "time")
"""Kinds that come again by themselves; they do not push out one that somebody asked for."""

# Above the training's: writing must not take its cores.
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class SharedSave:
    """A save of all ranks: which one it is, and where the local parts of this rank lie."""

    save: Save
    places: Mapping[str, PartPlace]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    skeleton: Any
    tensors: Sequence[Tensor]
    meta: Mapping[str, Any]
    kind: str
    release: Callable[[], object]
    ready: Callable[[], object]
    meant: Mapping[str, Tensor | None]
    shared_save: SharedSave | None

    @property
    def step(self) -> int:
        return int(self.meta["step"])

    @property
    def rank(self) -> int:
        return int(self.meta.get("rank", 0))

    def gain(self, settings: CheckpointSettings) -> float:
        """How good it is by the metric of the settings; minus infinity if that is not known."""
        value = float(self.meta.get("metrics", {}).get(settings.metric, math.nan))
        value = -value if settings.mode == "min" else value
        return value if math.isfinite(value) else -math.inf


class BackgroundWriter:
    """Writes the states it is given to a store, and keeps the store within its bounds.

    ``tell(step, result)`` is called for each. Of a save of all ranks only the one that writes the
    index has a ``file`` to tell.
    """

    def __init__(
        self,
        store: CheckpointStore,
        settings: CheckpointSettings,
        tell: Callable[[int, CheckpointResult], object],
    ) -> None:
        self.store = store
        self._settings = settings
        self._tell_raw = tell
        self._change = threading.Condition()
        self._pending: list[_Job] = []
        self._busy = False
        self._closed = False
        self._opened = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def submit(
        self,
        skeleton: Any,
        tensors: Sequence[Tensor],
        meta: Mapping[str, Any],
        kind: str,
        release: Callable[[], object] = lambda: None,
        *,
        ready: Callable[[], object] = lambda: None,
        meant: Mapping[str, Tensor | None] = NOTHING,
        shared_save: SharedSave | None = None,
    ) -> Path | None:
        """Hand over a state: where it will be, None when it will not be written. Never waits.

        ``meta`` is that of ``file.save``; ``step`` and ``rank`` make the name. ``tensors`` must
        not change until ``release`` is called, which happens exactly once, whatever becomes of
        the state. ``ready`` is called before they are read, for copies still under way. While
        one state is written one more can wait; of several the newest does, but a periodic one
        (``PERIODIC``) does not replace one that was asked for, and one that is better by the
        metric waits beside it. ``meant`` is that of ``first_nonfinite``.
        With ``shared_save`` all ranks save, each its share; whatever keeps this one from it, the
        others are told.
        """
        job = _Job(skeleton, tensors, meta, kind, release, ready, meant, shared_save)
        alone = False
        if os.getpid() != self._pid:
            return self._drop(job, "this process was forked from the one that writes")
        with self._change:
            asked = [one for one in self._pending if one.kind not in PERIODIC]
            if self._closed:
                lost, why = [job], "the writer is closed"
            elif asked and kind in PERIODIC:
                lost, why = [job], f"step {asked[-1].step}, which was asked for, is waiting"
            else:
                waiting, why = self._pending, f"step {job.step} came before its turn"
                self._pending = [*self._better(job), job]
                lost = [one for one in waiting if one not in self._pending]
                alone = not self._start()
                self._change.notify_all()
        for one in lost:
            self._drop(one, why)
        if job in lost:
            return None
        if alone:
            waiting, self._pending = self._pending, []
            for one in waiting:
                self._write(one)
        return self._path(job)

    def _path(self, job: _Job) -> Path:
        if job.shared_save is not None:
            return self.store.folder_path(job.step)
        return self.store.path(job.step, job.rank)

    def _better(self, job: _Job) -> list[_Job]:
        """The best one that is waiting, if it is better than ``job``."""
        best = max(self._pending, key=lambda one: one.gain(self._settings), default=None)
        if best is None or not self._settings.best:
            return []
        return [best] if best.gain(self._settings) > job.gain(self._settings) else []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to write; False when the time ran out."""
        with self._change:
            return self._change.wait_for(lambda: not (self._pending or self._busy), timeout)

    def close(self, timeout: float | None = None) -> bool:
        """Write what is waiting and end the thread; False when the time ran out."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread is None or os.getpid() != self._pid:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _drop(self, lost: _Job, why: str) -> None:
        _quietly(lost.release)
        self._fail(lost, f"not written: {why}")

    def _fail(self, job: _Job, why: str) -> None:
        """Say that a state is not written, also to ranks that count on it."""
        if job.shared_save is not None:
            job.shared_save.save.fail(why)
        self._tell(job.step, CheckpointResult(why=job.kind, failed=why))

    def _start(self) -> bool:
        """See that there is a thread; False where python starts none any more, at its exit."""
        if self._thread is None:
            # A daemon: a disk that hangs must not keep the process from ending.
            thread = threading.Thread(target=self._loop, name="holdfast-checkpoint", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return False
            self._thread = thread
        return True

    def _loop(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._pending or self._closed)
                if not self._pending:
                    return
                job = self._pending.pop(0)
                self._busy = True
            self._write(job)

    def _write(self, job: _Job) -> None:
        try:
            path = self._save(job)
        except Exception as error:
            self._fail(job, _reported(error))
            return
        finally:
            _quietly(job.release)
        if job.shared_save is not None and job.rank:
            return  # the rank that wrote the index removes older ones
        kept = self._settings
        try:
            self.store.prune(
                kept.last, kept.best, kept.metric, kept.mode, rank=job.rank, sure=[path]
            )
        except Exception as error:
            failed = f"older ones are still there: {_reported(error)}"
            self._tell(job.step, CheckpointResult(why=job.kind, failed=failed))

    def _save(self, job: _Job) -> Path:
        began = time.perf_counter()
        if not self._opened:
            self.store.open_for_writing(job.rank)
            self._opened = True
            if job.shared_save is not None:
                self.store.remove_leftover_folders(job.rank, job.shared_save.save.ranks.token)
        job.ready()
        bad = first_nonfinite(paths(job.skeleton), job.tensors, job.meant)
        if bad is not None:
            raise CheckpointError(f"not written: {bad} holds NaN or infinity; the last good stays")
        meta = {**job.meta, "kind": job.kind}
        written = self._written(job, meta)
        seconds = round(time.perf_counter() - began, 4)
        result = CheckpointResult(why=job.kind, bytes=written.bytes, seconds=seconds)
        if job.shared_save is not None and job.rank:
            self._tell(job.step, result.replace(part=job.rank))
            return written.path
        good, resume = bool(written.record["good"]), bool(job.meta.get("resume"))
        self._tell(job.step, result.replace(file=str(written.path), good=good, resume=resume))
        return written.path

    def _written(self, job: _Job, meta: Mapping[str, Any]) -> WrittenCheckpoint:
        if job.shared_save is None:
            path, compress = self._path(job), self._settings.compress
            return save(path, job.skeleton, job.tensors, meta, compress=compress)
        # Not before it is needed: the planners behind it take a while to import.
        from holdfast.checkpoint.sharded.saving import Share, save_share

        share = Share(job.skeleton, job.tensors, job.shared_save.places)
        return save_share(share, job.shared_save.save, self.store.folder, meta)

    def _tell(self, step: int, result: CheckpointResult) -> None:
        _quietly(lambda: self._tell_raw(step, result))


def _reported(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, CheckpointError) else f"{type(error).__name__}: {text}"


def _quietly(call: Callable[[], object]) -> None:
    # Somebody else's code, in a thread nobody watches: the next save must not suffer from it.
    with contextlib.suppress(Exception):
        call()

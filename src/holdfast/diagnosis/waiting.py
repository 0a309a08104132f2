"""What a loader or one of its workers is doing, from the frames of a thread that stands still."""

from __future__ import annotations

import multiprocessing
import os
from types import FrameType
from typing import Any, cast

from ..probes.batches import LoaderBatches, plain_index, plain_indices
from ..records.crash import LoaderWork
from ..run.batch_mark import batch_mark

# Indices of a batch that are told.
_NAMED = 16
_FETCH = os.path.join("_utils", "fetch.py")
_WORKER = os.path.join("_utils", "worker.py")


def work_of(frame: FrameType | None) -> LoaderWork:
    """What the loader on a stack does, or the worker that this process is."""
    work = LoaderWork(pid=os.getpid())
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "_next_data" and work.waits_for is None:
            work = _awaited(frame.f_locals.get("self"), work)
        elif name == "_sample" and file.endswith("replace_sample.py"):
            work = _reading(frame.f_locals.get("given"), work)
        elif file.endswith(_FETCH):
            if "idx" in frame.f_locals:
                work = _reading(frame.f_locals["idx"], work)
        elif name == "_worker_loop" and file.endswith(_WORKER):
            work = work.replace(worker=frame.f_locals.get("worker_id"))
            drawn: Any = frame.f_locals.get("index")
            if isinstance(drawn, list):  # else it has nothing to do
                few = cast("list[Any]", drawn)[:_NAMED]
                work = work.replace(samples=tuple(map(plain_index, few)))
        frame = frame.f_back
    return work


def _reading(index: Any, work: LoaderWork) -> LoaderWork:
    """The innermost call says which sample is being read."""
    return work if work.sample is not None else work.replace(sample=plain_index(index))


def _awaited(iterator: Any, work: LoaderWork) -> LoaderWork:
    """Which worker a loader waits for, and the samples it was given."""
    if not hasattr(iterator, "_task_info"):
        return work  # a loader without workers reads the sample itself
    number, worker = LoaderBatches.upcoming(iterator)
    timeout = float(getattr(iterator, "_timeout", 0) or 0)
    work = work.replace(waits_for=worker, started=_started(iterator), timeout=timeout)
    drawn = plain_indices(LoaderBatches.of(iterator).drawn.get(number))
    if drawn is None:
        return work
    return work.replace(samples=tuple(drawn[:_NAMED]), mark=batch_mark(drawn))


def _started(iterator: Any) -> str:
    """How its workers were started: ``fork``, ``spawn``, ``forkserver``."""
    workers = getattr(iterator, "_workers", None) or [None]
    own = getattr(type(workers[0]), "_start_method", None)
    return str(own or multiprocessing.get_start_method(allow_none=True) or "")

"""What a loader or one of its workers is doing, from the frames of a thread that stands still."""

from __future__ import annotations

import multiprocessing
import os
from types import FrameType
from typing import Any, cast

from ..probes.batches import LoaderLedger, plain_index, plain_indices
from ..run.batch_mark import batch_mark

# Indices of a batch that are told.
_NAMED = 16
_FETCH = os.path.join("_utils", "fetch.py")
_WORKER = os.path.join("_utils", "worker.py")


def work_of(frame: FrameType | None) -> dict[str, Any]:
    """Facts of the loader on a stack: ``sample``, ``samples``, ``worker``, ``waits_for``.

    ``waits_for`` is the number of the worker that this process waits for, ``worker`` the number of
    the one that this process is.
    """
    told: dict[str, Any] = {"pid": os.getpid()}
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "_next_data" and "waits_for" not in told:
            told |= _awaited(frame.f_locals.get("self"))
        elif name == "_sample" and file.endswith("replace_sample.py"):
            told.setdefault("sample", plain_index(frame.f_locals.get("given")))
        elif file.endswith(_FETCH):
            if "idx" in frame.f_locals:
                told.setdefault("sample", plain_index(frame.f_locals["idx"]))
        elif name == "_worker_loop" and file.endswith(_WORKER):
            told["worker"] = frame.f_locals.get("worker_id")
            drawn: Any = frame.f_locals.get("index")
            if isinstance(drawn, list):  # else it has nothing to do
                told["samples"] = [plain_index(one) for one in cast("list[Any]", drawn)[:_NAMED]]
        frame = frame.f_back
    return told


def _awaited(iterator: Any) -> dict[str, Any]:
    """Which worker a loader waits for, and the samples it was given."""
    if not hasattr(iterator, "_task_info"):
        return {}  # a loader without workers reads the sample itself
    number, worker = LoaderLedger.upcoming(iterator)
    how = {"started": _started(iterator), "timeout": float(getattr(iterator, "_timeout", 0) or 0)}
    drawn = plain_indices(LoaderLedger.of(iterator).drawn.get(number))
    if drawn is None:
        return {"waits_for": worker, **how}
    return {"waits_for": worker, **how, "samples": drawn[:_NAMED], "mark": batch_mark(drawn)}


def _started(iterator: Any) -> str:
    """How its workers were started: ``fork``, ``spawn``, ``forkserver``."""
    workers = getattr(iterator, "_workers", None) or [None]
    own = getattr(type(workers[0]), "_start_method", None)
    return str(own or multiprocessing.get_start_method(allow_none=True) or "")

"""Which lines of a dataset keep the loader's workers busy, seen from within them.

A thread in each forked worker looks at its main thread a hundred times a second and counts the
user's lines. The counts lie in memory that was mapped before the fork, so that we can read them at
any time. Nothing of the dataset is called, and nothing waits.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from types import FrameType

from ._place import frames_from, kind_of
from ._profiles import Line, Spot
from .loader_times import LoaderLook

_SLOT = 8192
_SLOTS = 64
_HEAD = struct.Struct("<qII")
# Seconds between two looks: at first, and after so many of them.
_OFTEN = 0.01
_RARELY = 0.05
_MANY = 400
# Otherwise the thread would wait five milliseconds for its turn, and mostly get it where the main
# thread gives it away: at calls of libraries.
_TURN = 0.0002
# Looks after which the counts are written down, and after which they count half.
_WRITE = 20
_FORGET = 400
# Looks at a busy worker without which nothing is known; lines that are told, and how deep.
_ENOUGH = 20
_LINES = 16
_DEPTH = 6

_shared = mmap.mmap(-1, _SLOT * _SLOTS)

Path = tuple[Spot, ...]


def begin() -> None:
    """We are a worker, and about to make samples."""
    watched = threading.main_thread().ident
    sys.setswitchinterval(min(_TURN, sys.getswitchinterval()))
    threading.Thread(target=_watch, args=(watched,), name="holdfast", daemon=True).start()


def look(pids: Sequence[int], step: float, batch: int) -> LoaderLook | None:
    """What the samples of some workers cost; None where too little is known.

    Args:
        pids: the workers.
        step: seconds that a step takes.
        batch: samples in a batch.
    """
    ticks = busy = 0.0
    counts: dict[Path, float] = {}
    for pid in pids:
        known = _read(pid)
        if known is None:
            continue
        ticks += known[0]
        busy += sum(known[1].values())
        for path, count in known[1].items():
            counts[path] = counts.get(path, 0.0) + count
    if busy < _ENOUGH:
        return None
    each = len(pids) * step / max(1, batch) / ticks
    lines: dict[Spot, Line] = {}
    for path, count in sorted(counts.items(), key=lambda item: -item[1]):
        line = lines.setdefault(path[-1], Line(*path[-1], "", "fetch", 0.0, 1.0, path))
        line.seconds += count * each
    slowest = sorted(lines.values(), key=lambda line: -line.seconds)
    return LoaderLook([(None, busy * each)], 0.0, slowest)


def _watch(watched: int) -> None:
    # The last words of a worker are not about this.
    with contextlib.suppress(Exception):
        _count(watched)


def _count(watched: int) -> None:
    counts: dict[Path, float] = {}
    ticks, looks = 0.0, 0
    while True:
        time.sleep(_OFTEN if looks < _MANY else _RARELY)
        frame = sys._current_frames().get(watched)
        if frame is None:
            return
        looks += 1
        ticks += 1
        if path := _path(frame):
            counts[path] = counts.get(path, 0.0) + 1
        # Without this the frame would live as long as the next look takes.
        del frame
        if looks % _FORGET == 0:
            ticks, counts = ticks / 2, {path: count / 2 for path, count in counts.items()}
        if looks % _WRITE == 0:
            _write(ticks, counts)


def _path(frame: FrameType) -> Path:
    """The user's lines, outermost first; empty while the worker waits for its next order."""
    found: list[Spot] = []
    for at in frames_from(frame):
        code = at.f_code
        if code.co_name == "_worker_loop":
            break
        if kind_of(code.co_filename) == "user":
            found.append((code.co_filename, at.f_lineno))
    else:
        return ()
    return tuple(reversed(found[:_DEPTH]))


def _write(ticks: float, counts: dict[Path, float]) -> None:
    most = sorted(counts.items(), key=lambda item: -item[1])[:_LINES]
    text = json.dumps([ticks, [[count, path] for path, count in most]]).encode()
    while len(text) > _SLOT - _HEAD.size and most:
        most.pop()
        text = json.dumps([ticks, [[count, path] for path, count in most]]).encode()
    at = os.getpid() % _SLOTS * _SLOT
    head = _HEAD.pack(os.getpid(), len(text), zlib.crc32(text))
    _shared[at : at + len(head) + len(text)] = head + text


def _read(pid: int) -> tuple[float, dict[Path, float]] | None:
    """Looks and counts of a worker; None where it has not written, or is just writing."""
    at = pid % _SLOTS * _SLOT
    owner, length, check = _HEAD.unpack_from(_shared, at)
    text = _shared[at + _HEAD.size : at + _HEAD.size + min(length, _SLOT - _HEAD.size)]
    if owner != pid or zlib.crc32(text) != check:
        return None
    ticks, lines = json.loads(text)
    return ticks, {tuple((file, line) for file, line in path): count for count, path in lines}

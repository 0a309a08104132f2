"""Which lines of a dataset keep the loader's workers busy, seen from within them.

A thread in each forked worker looks at its main thread a hundred times a second and counts the
user's lines. The counts lie in memory that was mapped before the fork, so that we can read them at
any time, and say there that a worker should look for what grows in it (``_worker_lengths``).
Nothing of the dataset is called, and nothing waits.
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
from typing import NamedTuple

from torch.utils.data._utils import fetch

from ...source.frames import frames_from
from ...source.ownership import kind_of
from ..memory.worker_lengths import Answer, Lengths
from .profiles import LoaderLook, ProfiledLine, Spot

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

# Who is to look for what grows, and the seconds between two looks.
_ORDER = struct.Struct("<qd")

_shared = mmap.mmap(-1, _SLOT * _SLOTS)
_orders = mmap.mmap(-1, _ORDER.size * _SLOTS)

# Where torch has a dataset make a batch, and collates it.
_FETCH = fetch.__file__

Path = tuple[Spot, ...]


def begin() -> None:
    """We are a worker, and about to make samples."""
    watched = threading.main_thread().ident
    sys.setswitchinterval(min(_TURN, sys.getswitchinterval()))
    threading.Thread(target=_watch, args=(watched,), name="holdfast", daemon=True).start()


def look(pids: Sequence[int], step: float, batch: int) -> LoaderLook | None:
    """What the samples of some workers cost, without lines where the script's own hardly ran.

    None where too little is known.

    Args:
        pids: the workers.
        step: seconds that a step takes.
        batch: samples in a batch.
    """
    ticks = busy = making = 0.0
    counts: dict[Path, float] = {}
    for pid in pids:
        known = _read(pid)
        if known is None:
            continue
        ticks += known.ticks
        making += known.making
        for path, count in known.lines:
            counts[path] = counts.get(path, 0.0) + count
            busy += count
    if not pids or ticks < _ENOUGH * len(pids):
        return None
    each = len(pids) * step / max(1, batch) / ticks
    made = making / ticks * len(pids) * step
    if busy < _ENOUGH:
        return LoaderLook(made=made)
    lines = [
        ProfiledLine(path, mark="fetch", seconds=count * each, hits=1.0)
        for path, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    return LoaderLook([(None, busy * each)], lines, made)


def order_growth(pid: int, apart: float) -> bool:
    """Have a worker look for what grows in it; False where it does not listen.

    Args:
        pid: the worker.
        apart: seconds in which it makes some samples.
    """
    _ORDER.pack_into(_orders, pid % _SLOTS * _ORDER.size, pid, apart)
    return _read(pid) is not None


def growth(pid: int) -> Answer | None:
    """What it has found; empty when nothing is longer each time, None while it is looking."""
    known = _read(pid)
    return known.grows if known is not None else None


class _Known(NamedTuple):
    """What a worker knows about itself."""

    ticks: float
    lines: list[tuple[Path, float]]
    making: float = 0.0
    """Ticks within the loader's own call that makes a batch."""
    grows: Answer | None = None


def _watch(watched: int) -> None:
    # The last words of a worker are not about this.
    with contextlib.suppress(Exception):
        _count(watched)


def _count(watched: int) -> None:
    counts: dict[Path, float] = {}
    ticks, making, looks, due = 0.0, 0.0, 0, 0.0
    grown = Lengths()
    while True:
        time.sleep(_OFTEN if looks < _MANY else _RARELY)
        frame = sys._current_frames().get(watched)
        if frame is None:
            return
        looks += 1
        ticks += 1
        path, makes = _path(frame)
        making += makes
        if path:
            counts[path] = counts.get(path, 0.0) + 1
        looking = grown.answer is None
        apart = _ordered() if looking else 0.0
        if apart and time.monotonic() > due:
            # A dictionary may change while it is looked at.
            with contextlib.suppress(RuntimeError):
                grown.look(frame)
            due = time.monotonic() + apart
        # Without this the frame would live as long as the next look takes.
        del frame
        if looks % _FORGET == 0:
            ticks, making = ticks / 2, making / 2
            counts = {path: count / 2 for path, count in counts.items()}
        # Somebody waits for the answer, and the worker may be gone soon.
        if looks % _WRITE == 0 or (looking and grown.answer is not None):
            most = sorted(counts.items(), key=lambda item: -item[1])[:_LINES]
            _write(_Known(ticks, most, making, grown.answer))


def _path(frame: FrameType) -> tuple[Path, bool]:
    """The user's lines, outermost first, and whether the worker is making a batch.

    Both are empty while it waits for its next order.
    """
    found: list[Spot] = []
    makes = False
    for at in frames_from(frame):
        code = at.f_code
        if code.co_name == "_worker_loop":
            break
        makes = makes or code.co_filename == _FETCH
        if kind_of(code.co_filename) == "user":
            found.append((code.co_filename, at.f_lineno))
    else:
        return (), False
    return tuple(reversed(found[:_DEPTH])), makes


def _ordered() -> float:
    pid, apart = _ORDER.unpack_from(_orders, os.getpid() % _SLOTS * _ORDER.size)
    return apart if pid == os.getpid() else 0.0


def _write(known: _Known) -> None:
    text = json.dumps(known).encode()
    while len(text) > _SLOT - _HEAD.size:
        known.lines.pop()
        text = json.dumps(known).encode()
    at = os.getpid() % _SLOTS * _SLOT
    head = _HEAD.pack(os.getpid(), len(text), zlib.crc32(text))
    _shared[at : at + len(head) + len(text)] = head + text


def _read(pid: int) -> _Known | None:
    """What a worker knows; None where it has not written, or is just writing."""
    at = pid % _SLOTS * _SLOT
    owner, length, check = _HEAD.unpack_from(_shared, at)
    text = _shared[at + _HEAD.size : at + _HEAD.size + min(length, _SLOT - _HEAD.size)]
    if owner != pid or zlib.crc32(text) != check:
        return None
    ticks, lines, making, grows = json.loads(text)
    paths = [(tuple((file, line) for file, line in path), count) for path, count in lines]
    return _Known(ticks, paths, making, grows)

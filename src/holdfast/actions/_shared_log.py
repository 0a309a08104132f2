"""Records that child processes write and the one that started them reads."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing.reduction import DupFd
from typing import Any

_HEAD = struct.Struct("I")
_ROOM = 1 << 18  # some hundred records; what comes later is counted and not kept


class SharedLog:
    """Lines of JSON in memory that children of this process share, forked or spawned.

    >>> log = SharedLog()
    >>> log.grown
    False
    >>> log.add({"sample": 3})
    True
    >>> log.grown, log.fresh(), log.grown
    (True, [{'sample': 3}], False)
    """

    def __init__(self) -> None:
        self._open(_file())
        self._read = 0

    def _open(self, file: int) -> None:
        self._file = file
        self._memory = mmap.mmap(file, _ROOM)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.close(self._file)

    def __getstate__(self) -> dict[str, Any]:
        """For a process that is being spawned: it gets the same memory."""
        return {"file": DupFd(self._file), "read": self._read}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._open(state["file"].detach())
        self._read = state["read"]

    @property
    def grown(self) -> bool:
        """Whether there is something that ``fresh`` has not given; one comparison."""
        return _HEAD.unpack_from(self._memory)[0] != self._read

    def add(self, record: Mapping[str, Any], most: int | None = None, key: str = "") -> bool:
        """Write one; False where there is no room, or where ``most`` have another ``key`` value."""
        line = json.dumps(dict(record), default=str).encode() + b"\n"
        with self._locked():
            used = _HEAD.unpack_from(self._memory)[0]
            if most is not None:
                known = {str(one[key]) for one in self._between(0, used) if key in one}
                if str(record[key]) not in known and len(known) >= most:
                    return False
            if _HEAD.size + used + len(line) > _ROOM:
                return False
            start = _HEAD.size + used
            self._memory[start : start + len(line)] = line
            _HEAD.pack_into(self._memory, 0, used + len(line))
        return True

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl  # not on Windows

        # Given back by the kernel when a worker dies, unlike a semaphore.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def fresh(self) -> list[dict[str, Any]]:
        """What was written since the last call."""
        used = _HEAD.unpack_from(self._memory)[0]
        found = self._between(self._read, used)
        self._read = used
        return found

    def everything(self) -> list[dict[str, Any]]:
        """All that any process has written."""
        return self._between(0, _HEAD.unpack_from(self._memory)[0])

    def _between(self, first: int, last: int) -> list[dict[str, Any]]:
        lines = self._memory[_HEAD.size + first : _HEAD.size + last].splitlines()
        return [json.loads(line) for line in lines]


def _file() -> int:
    """A file without a name, in memory where the system has that."""
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("holdfast-samples")
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.ftruncate(file, _ROOM)
    return file

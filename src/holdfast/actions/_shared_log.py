"""Records that forked processes write and the one that forked them reads."""

from __future__ import annotations

import json
import mmap
import multiprocessing
import struct
from collections.abc import Mapping
from typing import Any

_HEAD = struct.Struct("I")
_ROOM = 1 << 18  # some hundred records; what comes later is counted and not kept


class SharedLog:
    """Lines of JSON in memory that children of this process share.

    >>> log = SharedLog()
    >>> log.grown
    False
    >>> log.add({"sample": 3})
    True
    >>> log.grown, log.fresh(), log.grown
    (True, [{'sample': 3}], False)
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _ROOM)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._read = 0

    @property
    def grown(self) -> bool:
        """Whether there is something that ``fresh`` has not given; one comparison."""
        return _HEAD.unpack_from(self._memory)[0] != self._read

    def add(self, record: Mapping[str, Any], most: int | None = None, key: str = "") -> bool:
        """Write one; False where there is no room, or where ``most`` have another ``key`` value."""
        line = json.dumps(dict(record), default=str).encode() + b"\n"
        with self._lock:
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

    def fresh(self) -> list[dict[str, Any]]:
        """What was written since the last call."""
        used = _HEAD.unpack_from(self._memory)[0]
        found = self._between(self._read, used)
        self._read = used
        return found

    def _between(self, first: int, last: int) -> list[dict[str, Any]]:
        lines = self._memory[_HEAD.size + first : _HEAD.size + last].splitlines()
        return [json.loads(line) for line in lines]

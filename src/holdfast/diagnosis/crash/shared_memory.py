"""What a bus error may come from: no room for shared memory, or a mapped file that became shorter.

Read when a loader worker is already dead: what it alone held in shared memory is free again.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ...records.crash import RaisedException, SharedMemory, ShorterFile
from ...redaction import redact_text
from ...source.paths import from_here
from .traceback_frames import TracebackEntry
from .values import is_tensor

_SHARED = "/dev/shm"
_MAPS = Path("/proc/self/maps")
# Files that are named.
_NAMED = 4


def bus_error(
    calls: Sequence[TracebackEntry], workers: int, found: RaisedException
) -> RaisedException:
    """Room for shared memory, what the batches on their way need of it, and shorter files."""
    if os.path.isdir(_SHARED):
        left = os.statvfs(_SHARED)
        size, free = left.f_blocks * left.f_frsize, left.f_bavail * left.f_frsize
        found = found.replace(shared_memory=SharedMemory(bytes=size, free=free))
    if largest := _largest_tensor(calls):
        # As many batches as the loader has asked of its workers, and one more of each.
        ahead = next((a for call in reversed(calls) if (a := _prefetched(call))), 2)
        found = found.replace(shared_memory_needed=largest * max(1, workers) * (ahead + 1))
    if _MAPS.exists():
        shorter = itertools.islice(shorter_files(_MAPS.read_text(errors="replace")), _NAMED)
        found = found.replace(shorter_files=tuple(shorter))
    return found


def shorter_files(maps: str) -> Iterator[ShorterFile]:
    """Files that end before the memory map that reads them, by ``/proc/self/maps``.

    A worker that was forked has the same maps of what its dataset held before.
    """
    mapped: dict[tuple[str, str], int] = {}
    for line in maps.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/") or "r" not in fields[1]:
            continue
        first, last = (int(part, 16) for part in fields[0].split("-"))
        key = fields[5], fields[4]
        mapped[key] = max(mapped.get(key, 0), int(fields[2], 16) + last - first)
    for (path, inode), end in mapped.items():
        try:
            found = os.stat(path)
        except OSError:  # removed or replaced: the map still has all of the old one
            continue
        # A map has whole pages, and the last one may be filled by the file in part.
        if str(found.st_ino) == inode and 0 <= found.st_size <= end - mmap.PAGESIZE:
            file = redact_text(from_here(path))
            yield ShorterFile(file=file, bytes=found.st_size, mapped=end)


def _largest_tensor(calls: Sequence[TracebackEntry]) -> int:
    """Bytes of the largest tensor of the user's innermost function: the last batch or larger."""
    user = next((call for call in reversed(calls) if call.is_users), None)
    held = user.frame.f_locals.values() if user is not None else ()
    return max((t.numel() * t.element_size() for t in held if is_tensor(t)), default=0)


def _prefetched(call: TracebackEntry) -> int:
    ahead = getattr(call.frame.f_locals.get("self"), "_prefetch_factor", None)
    return ahead if isinstance(ahead, int) else 0

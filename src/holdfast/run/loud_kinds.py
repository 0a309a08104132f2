"""Which events are read of a lane that has more of them than anybody looks at.

A run writes a few thousand; a loop that goes wrong, or somebody who wants to stop the reader, any
number. Kinds with few events are read whole. Of the others the first and the last are, so many of
each that all together stay below ``MOST``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from holdfast.regular_files import open_regular
from holdfast.run.jsonl import LONGEST

MOST = 10_000
"""Events of a lane at most; ten thousand epochs that are told one by one fit in."""
# A line is longer than this: a smaller file need not be counted.
_SHORTEST = 50
_KINDS = 1_000
_CHUNK = 1 << 20
# As we write it; the data come behind.
_KIND = re.compile(rb'^\{"time":[^,"\n]*,"rank":\d+,"step":-?\d+,"kind":"(\w{1,60})"', re.M)


def chosen(path: Path, start: int, stop: int | None) -> Callable[[bytes], bool] | None:
    """Whether a line is read, asked for each line between two byte offsets; None for all."""
    counts: Counter[bytes] = Counter()
    try:
        if (path.stat().st_size if stop is None else stop) - start <= MOST * _SHORTEST:
            return None
        for lines in _chunks(path, start, stop):
            kinds = Counter(_KIND.findall(lines))
            kinds[b""] = lines.count(b"\n") - kinds.total()
            for kind, count in kinds.items():
                counts[kind if kind in counts or len(counts) < _KINDS else b""] += count
    except OSError:
        # Whoever reads the lines says what is wrong.
        return None
    return None if counts.total() <= MOST else _few(counts)


def _chunks(path: Path, start: int, stop: int | None) -> Iterator[bytes]:
    """Whole lines, many at a time; one that is too long is left to who reads them."""
    left = _CHUNK if stop is None else stop - start
    rest = b""
    with open_regular(path) as file:
        file.seek(start)
        while len(rest) <= LONGEST and (read := file.read(min(_CHUNK, left))):
            left -= 0 if stop is None else len(read)
            lines, newline, after = read.rpartition(b"\n")
            if newline:
                yield rest + lines + newline
                rest = after
            else:
                rest += read


def _few(counts: Counter[bytes]) -> Callable[[bytes], bool]:
    each = _at_most(counts.values())
    head = each // 2
    tail = {kind: count - (each - head) for kind, count in counts.items()}
    seen = dict.fromkeys(counts, 0)

    def wanted(line: bytes) -> bool:
        found = _KIND.match(line)
        kind = found[1] if found else b""
        if kind not in seen:
            kind = b""
        number = seen[kind]
        seen[kind] = number + 1
        return number < head or number >= tail[kind]

    return wanted


def _at_most(counts: Iterable[int]) -> int:
    """How many events of a kind are read, so that all that are read are at most ``MOST``."""
    left, kinds = MOST, sorted(counts)
    for place, count in enumerate(kinds):
        share = left // (len(kinds) - place)
        if count > share:
            return share
        left -= count
    return MOST

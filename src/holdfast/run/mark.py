"""The rule by which no row is lost or doubled when the draining process dies.

Rows travel from the ring into files in two steps: append to the files, then advance the
ring's tail. A death between the two leaves rows in both places. So the tail carries a note,
changed together with it by one 8-byte store: how long each file was, counted in rows or
bytes, when the ring began where it now begins. From that follows, at any instant:

    the record = the files up to the marked lengths + everything in the ring

What a file holds beyond its mark is still in the ring. A reader leaves it out; a new writer
cuts it off and appends it again from the ring. An empty note marks nothing (someone drained
without a ``LaneWriter``): then the files are taken as they are.

Two things must hold for this and are kept by ``LaneWriter``: a mark is set before the first
append, and segments are thinned only while everything in the files is marked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from holdfast.run import jsonl


@dataclass(frozen=True, slots=True)
class Mark:
    """How much of each file counts: (segment, rows in it) per table, bytes per stream."""

    tables: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    streams: Mapping[str, int] = field(default_factory=dict[str, int])

    def encode(self) -> bytes:
        """The note to leave at the ring's tail."""
        return jsonl.encode({"tables": self.tables, "streams": self.streams})

    @classmethod
    def decode(cls, note: bytes) -> Self | None:
        """Read a note back; None when nothing is marked or the note makes no sense."""
        try:
            data = jsonl.decode(note)
            tables = {str(k): (int(v[0]), int(v[1])) for k, v in data["tables"].items()}
            return cls(tables, {str(k): int(v) for k, v in data["streams"].items()})
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return None

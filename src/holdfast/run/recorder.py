"""The training process' end of the ring: rows, events and batches go in, nothing is awaited.

One recorder is one lane of the run folder. Under ``holdfast run`` the parent drains the ring;
in library use a thread of this process does.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from holdfast.records import Kind
from holdfast.records.base import event_from
from holdfast.redaction import hide_known_in
from holdfast.run.folder import Run
from holdfast.run.jsonl import decode, encode
from holdfast.run.kinds import (
    BATCH,
    DECLARATION,
    EVENT,
    FIRST_ROW,
)
from holdfast.run.ring import Ring


class Recorder:
    """Writes one lane; every method returns at once."""

    def __init__(self, run: Run, rank: int, pid: int, owner: str, capacity: int) -> None:
        self.run = run
        self.rank = rank
        self.lane = run.claim_lane(rank, pid)
        self.ring = Ring.create(run.ring_path(self.lane), capacity, owner=owner, pid=pid)
        self._tables = FIRST_ROW

    def event(self, step: int, record: Kind) -> None:
        """Something happened once."""
        event = event_from(step, record, self.rank)
        self.ring.put(EVENT, encode(hide_known_in(event.to_dict())))

    def batch(self, data: Mapping[str, Any]) -> None:
        """The batch of an incident."""
        self.ring.put(BATCH, encode(hide_known_in(data)))

    def table(self, name: str, columns: Sequence[str]) -> RowTable:
        """Open a table of fp32 columns beside step and time."""
        number = self._tables
        self._tables += 1
        dtype = [["step", "<i8"], ["time", "<f8"], *([c, "<f4"] for c in columns)]
        self.ring.put(DECLARATION, encode({"id": number, "table": name, "dtype": dtype}))
        return RowTable(self.ring, number, columns)

    def orders(self) -> list[dict[str, Any]]:
        """What the other side asks of this process: one dictionary for each action."""
        if not self.ring.has_message:
            return []
        return list(decode(self.ring.message()).get("orders", ()))

    def close(self) -> None:
        """No more rows will come from this process."""
        self.ring.close_writer()


class RowTable:
    """One kind of row; packing is compiled once."""

    def __init__(self, ring: Ring, number: int, columns: Sequence[str]) -> None:
        self._ring = ring
        self._number = number
        self._head = struct.Struct("<qd")
        self._pack = struct.Struct(f"<qd{len(columns)}f").pack

    def put(self, step: int, at: float, row: Mapping[str, float]) -> None:
        """Write one row, which has exactly the table's columns in their order."""
        try:
            packed = self._pack(step, at, *row.values())
        except OverflowError:
            packed = self._pack(step, at, *map(_fits, row.values()))
        self._ring.put(self._number, packed)

    def put_all(self, rows: Sequence[tuple[int, float, Mapping[str, float]]]) -> None:
        """Write several rows by one store: step, time and columns of each."""
        pack = self._pack
        try:
            packed = [pack(step, at, *row.values()) for step, at, row in rows]
        except OverflowError:
            packed = [pack(step, at, *map(_fits, row.values())) for step, at, row in rows]
        self._ring.put_all(self._number, packed)

    def put_array(self, step: int, at: float, values: np.ndarray) -> None:
        """Write one row from an array in column order."""
        self._ring.put(
            self._number, self._head.pack(step, at) + values.astype("<f4", copy=False).tobytes()
        )


def _fits(value: float) -> float:
    """Python refuses to pack a finite double beyond fp32; infinity is what it becomes."""
    if -3.4e38 < value < 3.4e38 or value != value:
        return value
    return math.inf if value > 0 else -math.inf

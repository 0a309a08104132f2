"""A run in a few words: what a detector must speak about, and what it must not.

    fires = rows(60, lr=0)
    silent = rows(60, lr=[0] * 49 + [1e-3] * 11)

Stands in the class of a detector, beside its rule; ``tests/catalogue`` makes runs of it and asks
every detector the same questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..records import Kind
from ..types import Event

Values = float | Sequence[float] | Mapping[int, float]
"""One value for all rows, one for each, or some by the number of their row (``{-1: 0.0}``)."""


class Example(NamedTuple):
    """Rows of a healthy run but for some columns, with events at its last step."""

    steps: int
    columns: Mapping[str, Values]
    reported: tuple[Kind | Event, ...]

    def events(self, step: int) -> list[Event]:
        """Its events, as if they were recorded at this step."""
        made: list[Event] = []
        for one in self.reported:
            kind, data = (one.kind, one.data) if isinstance(one, Event) else _written(one)
            made.append(Event(time=0.0, rank=0, step=step, kind=kind, data=data))
        return made


def rows(steps: int, *events: Kind | Event, **columns: Values) -> Example:
    """Rows of a healthy run with some columns replaced, and records of events at the last one.

    >>> rows(3, lr=0, loss={-1: 9.0}).columns
    {'lr': 0, 'loss': {-1: 9.0}}
    """
    return Example(steps, columns, events)


def _written(record: Kind) -> tuple[str, dict[str, Any]]:
    return record.kind, record.to_dict()

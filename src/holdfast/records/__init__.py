"""The contract between the process that trains and the one that judges; free of torch.

Columns of a step's row, and every kind of event as a frozen record: written with ``to_dict``, read
with ``from_dict``. A key that is missing, unknown or of another type makes an event
``holdfast_error`` in the process that judges, never silence.

    >>> KINDS["holdfast_error"](where="reading a cause", error="KeyError: 'file'").to_dict()
    {'where': 'reading a cause', 'error': "KeyError: 'file'"}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from holdfast.types import Event

from . import (
    crash,
    lines,
    memory,
    nonfinite,
    ranks,
    recovery,
    resuming,
    run,
    steps,
    times,
    trainer,
)
from .base import Kind, Note, Record, RecordError

K = TypeVar("K", bound=Kind)

THEMES = (crash, lines, memory, nonfinite, ranks, recovery, resuming, run, steps, times, trainer)

KINDS: Mapping[str, type[Kind]] = {
    kind.kind: kind
    for theme in THEMES
    for kind in vars(theme).values()
    if isinstance(kind, type) and issubclass(kind, Kind) and kind.kind
}
"""Every kind of event by its word. Others are notes of a script, a recipe or a plugin."""


def read(kind: str, data: Mapping[str, Any]) -> Kind | RecordError | None:
    """The record of an event; the error where it is none, None for a kind of somebody else."""
    record = KINDS.get(kind)
    if record is None:
        return None
    try:
        return record.from_dict(data)
    except RecordError as error:
        return error


def note(kind: str, data: Mapping[str, Any]) -> Kind:
    """What somebody else records; a ``RecordError`` for one of our kinds with other data.

    Readers take such an event for one of ours, and would look for its keys.
    """
    found = read(kind, data)
    if isinstance(found, RecordError):
        raise RecordError(f"{found}; this kind is one of holdfast's own, choose another word")
    return Note(kind, data) if found is None else found


def records_of(kind: type[K], events: Iterable[Event]) -> Iterator[K]:
    """What the events of a kind hold, in their order."""
    return (found for event in events if (found := kind.of(event)) is not None)


def fault(event: Event) -> str:
    """Why the data of an event are no record of its kind; empty where they are one."""
    found = read(event.kind, event.data) if event.record is None else event.record
    return str(found) if isinstance(found, RecordError) else ""


__all__ = [
    "KINDS",
    "THEMES",
    "Kind",
    "Note",
    "Record",
    "RecordError",
    "fault",
    "note",
    "read",
    "records_of",
]

"""The run folder: what training recorded, on disk, and nothing else.

Training puts records into a ``Ring``; a ``LaneWriter`` in another process appends them to
the files of a ``Run``; a ``LaneReader`` reads them, during the run or after it. None of
this needs torch. Names are resolved when they are used: ``holdfast run`` makes the folder and
starts the script before it imports numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.run.folder import Run, new_run_path, rank_of
    from holdfast.run.jsonl import decode, encode
    from holdfast.run.kinds import (
        BATCH,
        DECLARATION,
        EVENT,
        FIRST_ROW,
    )
    from holdfast.run.life import Life, life_of
    from holdfast.run.names import find_run, run_folders, run_path
    from holdfast.run.process import ProcessMark
    from holdfast.run.reader import (
        LaneData,
        LaneReader,
        Tail,
        read_run,
    )
    from holdfast.run.recorder import Recorder, RowTable
    from holdfast.run.ring import Ring
    from holdfast.run.table import Declaration, Rows
    from holdfast.run.writer import LaneWriter, Taken

_HOME = {
    "BATCH": "kinds",
    "DECLARATION": "kinds",
    "EVENT": "kinds",
    "FIRST_ROW": "kinds",
    "Declaration": "table",
    "LaneData": "reader",
    "LaneReader": "reader",
    "LaneWriter": "writer",
    "Life": "life",
    "ProcessMark": "process",
    "Recorder": "recorder",
    "Ring": "ring",
    "Rows": "table",
    "Run": "folder",
    "RowTable": "recorder",
    "Tail": "reader",
    "Taken": "writer",
    "decode": "jsonl",
    "encode": "jsonl",
    "find_run": "names",
    "life_of": "life",
    "new_run_path": "folder",
    "rank_of": "folder",
    "read_run": "reader",
    "run_folders": "names",
    "run_path": "names",
}

__all__ = [
    "BATCH",
    "DECLARATION",
    "EVENT",
    "FIRST_ROW",
    "Declaration",
    "LaneData",
    "LaneReader",
    "LaneWriter",
    "Life",
    "ProcessMark",
    "Recorder",
    "Ring",
    "RowTable",
    "Rows",
    "Run",
    "Tail",
    "Taken",
    "decode",
    "encode",
    "find_run",
    "life_of",
    "new_run_path",
    "rank_of",
    "read_run",
    "run_folders",
    "run_path",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value

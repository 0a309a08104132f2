"""The run folder: what training recorded, on disk, and nothing else.

Training puts records into a ``Ring``; a ``LaneWriter`` in another process appends them to
the files of a ``Run``; a ``LaneReader`` reads them, during the run or after it. None of
this needs torch.
"""

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
from holdfast.run.recorder import Recorder, Table
from holdfast.run.ring import Ring
from holdfast.run.table import Declaration, Rows
from holdfast.run.writer import LaneWriter, Taken

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
    "Rows",
    "Run",
    "Table",
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

"""The table of a scan: what became of each run, read from the run folders."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import RunFolderError
from ..records.recovery import RunStopped
from ..records.trainer import TrainingEnded, Validated
from ..run import (
    LaneData,
    LaneReader,
    Run,
    life_of,
    rank_of,
)
from ..run.durable import replace_file
from ..types import Event


@dataclass(frozen=True, kw_only=True)
class Row:
    """One run of a scan."""

    state: str
    """new, running, interrupted, failed, stopped or finished."""
    best: float = math.nan
    best_step: int = 0
    steps: int = 0
    seconds: float = 0.0
    skipped: int = 0
    why: str = ""


def read_row(folder: Path, metric: str, mode: str) -> Row:
    """What became of the run in a folder; ``new`` where there is none."""
    try:
        run = Run.open(folder)
        lanes = [_read(run, lane) for lane in run.lanes() if rank_of(lane) == 0]
    except RunFolderError:
        return Row(state="new", why="not started")
    lanes.sort(key=_order)
    state, why = _state(run, lanes[-1].events if lanes else [])
    best, best_step = _best([event for lane in lanes for event in lane.events], metric, mode)
    lanes = [lane for lane in lanes if len(lane.steps)]
    return Row(
        state=state,
        best=best,
        best_step=best_step,
        steps=int(lanes[-1].steps["step"][-1]) + 1 if lanes else 0,
        seconds=sum(_seconds(lane) for lane in lanes),
        skipped=sum(int(np.nansum(lane.steps["skipped"])) for lane in lanes),
        why=why,
    )


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The table for programs, in one step."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


def _read(run: Run, lane: str) -> LaneData:
    return LaneReader(run, lane).read(tables=("steps",))


def _order(lane: LaneData) -> tuple[float, float]:
    """A resumed run goes on in a lane of its own, which may have no step."""
    start = next((event.time for event in lane.events if event.kind == "start"), 0.0)
    return start, float(lane.steps["time"][0]) if len(lane.steps) else 0.0


def _seconds(lane: LaneData) -> float:
    """What the trainer measured; of a run that was killed the time from its first row on."""
    for event in lane.events:
        if (ended := TrainingEnded.of(event)) is not None:
            return ended.seconds
    return float(lane.steps["time"][-1]) - float(lane.steps["time"][0])


def _state(run: Run, events: Sequence[Event]) -> tuple[str, str]:
    """How the newest process of a run ended, from what it recorded."""
    if life_of(run).state == "running":
        return "running", "still running"
    stop = next(filter(None, map(RunStopped.of, events)), None)
    if stop is not None:
        return "stopped", f"stopped by holdfast: {stop.why or stop.code}"
    ended = next(filter(None, map(TrainingEnded.of, events)), None)
    if ended is not None:
        return "interrupted" if ended.interrupted else "finished", ended.why
    if run.meta.get("status") == "finished":
        return "failed", f"failed (exit code {run.meta.get('exit_code')})"
    return "interrupted", "killed"


def _best(events: Sequence[Event], metric: str, mode: str) -> tuple[float, int]:
    """The best validation; what is not finite never is."""
    found = [
        (one.values[metric], event.step)
        for event in events
        if (one := Validated.of(event)) is not None and metric in one.values
    ]
    finite = [pair for pair in found if math.isfinite(pair[0])]
    if not finite:
        return math.nan, 0
    sign = 1 if mode == "min" else -1
    return min(finite, key=lambda pair: (sign * pair[0], pair[1]))

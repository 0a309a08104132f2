"""The course of a rank over all its parts: runs that this one goes on from, and its restarts.

A part that resumed goes on from the step of a checkpoint. What the part before it did after that
checkpoint is done again: it is no part of the course, but kept to be shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..errors import HoldfastError
from ..records.resuming import Resumed
from ..run import LaneData, LaneReader, Rows, Run, rank_of
from ..run.resumption import DIGEST, RESUMED_FROM
from .lanes import trusted

# Runs that were resumed one from the other; more are a page nobody reads, or a circle.
_MOST = 16


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCurves:
    """One rank from its first step to its last, as one lane."""

    lane: LaneData
    resume_points: tuple[int, ...] = ()
    """The first step of every part but the first."""
    redone: tuple[Rows, ...] = ()
    """Rows of steps that a later part made again."""


def run_curves_of(lanes: Sequence[LaneData], earlier: Sequence[LaneData] = ()) -> list[RunCurves]:
    """A course for each rank that has rows; the rank of the first lane with rows leads.

    A restart that did not resume begins a course of its own.

    Args:
        lanes: of the run.
        earlier: lanes of the runs that it goes on from, the earliest first.
    """
    trained = sorted((lane for lane in lanes if len(lane.steps)), key=_begin)
    ranks = dict.fromkeys(lane.rank for lane in lanes if len(lane.steps))
    found: list[RunCurves] = []
    for rank in ranks:
        before = [lane for lane in earlier if lane.rank == rank and len(lane.steps)]
        own = [lane for lane in trained if lane.rank == rank]
        chains: list[list[LaneData]] = [before]
        for lane in own:
            if chains[-1] and not _resumed(lane):
                chains.append([])
            chains[-1].append(lane)
        found += [_joined(chain) for chain in reversed(chains)]
    # Of a rank the newest course comes first; of all ranks their newest come before older ones.
    newest = {run_curves.lane.rank: run_curves for run_curves in reversed(found)}
    return [*(newest[rank] for rank in ranks), *(c for c in found if c is not newest[c.lane.rank])]


def earlier_lanes(run: Run) -> list[LaneData]:
    """Lanes of the runs that this one goes on from, if they are there; the earliest first."""
    found: list[LaneData] = []
    seen = {run.path.absolute()}
    for before in _before(run):
        if before.path.absolute() in seen or len(seen) > _MOST:
            break
        seen.add(before.path.absolute())
        found = [*_readable(before), *found]
    return found


def _before(run: Run) -> Iterator[Run]:
    while (point := run.meta.get(RESUMED_FROM)) is not None:
        found = _opened(run, cast("Mapping[str, Any]", point) if isinstance(point, dict) else {})
        if found is None:
            return
        run = found
        yield run


def _opened(run: Run, point: Mapping[str, Any]) -> Run | None:
    """The run that another goes on from: where it was, or beside it if both were moved."""
    name, checkpoint = str(point.get("run") or ""), str(point.get("checkpoint") or "")
    if not name:
        return None
    places = [Path(checkpoint).parent.parent] if checkpoint else []
    for place in [*places, run.path.absolute().parent / Path(name).name, Path(name)]:
        try:
            found = Run.open(place)
        except (HoldfastError, OSError):
            continue
        # Another run may have the name by now.
        if found.meta.get(DIGEST) == run.meta.get(DIGEST):
            return found
    return None


def _readable(run: Run) -> Iterator[LaneData]:
    for name in run.lanes():
        try:
            lane = trusted(run, LaneReader(run, name).read())
        except (HoldfastError, OSError):
            continue
        if len(lane.steps) and lane.rank == rank_of(name):
            yield lane


def _begin(lane: LaneData) -> float:
    return float(lane.steps["time"][0])


def _resumed(lane: LaneData) -> bool:
    return any(event.kind == Resumed.kind for event in lane.events)


def _joined(parts: Sequence[LaneData]) -> RunCurves:
    """One lane of several, each up to the step with which the next one begins."""
    if len(parts) == 1:
        return RunCurves(lane=parts[0])
    kept, redone = list[LaneData](), list[Rows]()
    begins = [int(part.steps["step"][0]) for part in parts]
    for i, part in enumerate(parts):
        end = min(begins[i + 1 :], default=None)
        if end is None:
            kept.append(part)
            continue
        again = part.steps["step"] >= end
        redone += [part.steps[again]] if again.any() else []
        kept.append(
            replace(
                part,
                steps=part.steps[~again],
                tables={name: rows[rows["step"] < end] for name, rows in part.tables.items()},
                events=[event for event in part.events if event.step < end],
            )
        )
    last = kept[-1]
    tables = {name: None for part in kept for name in part.tables}
    lane = replace(
        last,
        steps=stacked([part.steps for part in kept]),
        tables={
            name: stacked([part.tables[name] for part in kept if name in part.tables])
            for name in tables
        },
        events=[event for part in kept for event in part.events],
    )
    return RunCurves(lane=lane, resume_points=tuple(begins[1:]), redone=tuple(redone))


def stacked(tables: Sequence[Rows]) -> Rows:
    """Rows of several tables one behind the other; NaN in columns that a table does not have."""
    if all(table.dtype == tables[0].dtype for table in tables):
        return np.concatenate(tables)
    form = {name: table.dtype[name] for table in tables for name in table.dtype.names or ()}
    joined = np.zeros(sum(map(len, tables)), dtype=list(form.items()))
    at = 0
    for table in tables:
        part = joined[at : at + len(table)]
        for name, kind in form.items():
            if name in (table.dtype.names or ()):
                part[name] = table[name]
            elif kind.kind == "f":
                part[name] = np.nan
        at += len(table)
    return joined

"""Input of detectors that compare ranks: their lanes side by side.

A lane is recorded by each rank for itself. Findings about ranks come from comparing what lies in
the run folder, beside the training: no rank waits for another one because of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..records import Kind
from ..records.ranks import MadeAt, Parallel
from ..records.steps import GuardedOptimizer
from ..run import LaneData
from ..types import Event, Finding, Severity
from ._lines import LineTimesEvent, look_of
from ._window import Rows, Window, column, optimizer
from .base import Detector

DDP, FSDP = "ddp", "fsdp"

K = TypeVar("K", bound=Kind)
Origin = tuple[str, int]
"""File and line; "", 0 where they are not known."""


@dataclass(frozen=True, kw_only=True)
class RankLane:
    """What one rank recorded."""

    name: str
    rank: int
    rows: Rows
    tables: Mapping[str, Rows] = field(default_factory=dict[str, Rows])
    events: Sequence[Event] = ()
    findings: Sequence[Finding] = ()

    @classmethod
    def of(cls, data: LaneData, findings: Sequence[Finding], columns: Sequence[str]) -> RankLane:
        """A lane as it was read, with only the columns that somebody compares."""
        names = [n for n in data.steps.dtype.names or () if n in ("step", "time", "opt", *columns)]
        return cls(
            name=data.lane,
            rank=data.rank,
            rows=data.steps[names],
            tables={n: t for n, t in data.tables.items() if n.startswith(("weights", "layers"))},
            events=data.events,
            findings=findings,
        )

    @cached_property
    def parallel(self) -> Parallel | None:
        """How its first optimizer trains with other ranks; None before the first step."""
        first = [found for found in self.records_of(Parallel) if not found.opt]
        return first[-1] if first else None

    @property
    def facts(self) -> Parallel:
        """The same; those of a rank that trains alone before the first step."""
        return self.parallel or _ALONE

    @cached_property
    def layers(self) -> Sequence[str]:
        """Names of the layers of its first optimizer."""
        first = [found for found in self.records_of(GuardedOptimizer) if not found.opt]
        return first[-1].layers if first else ()

    @cached_property
    def steps(self) -> Rows:
        """The rows of its first optimizer, each step once: as it was made last."""
        own = optimizer(self.rows) == 0
        rows = self.rows if own.all() else self.rows[own]
        if (np.diff(rows["step"]) > 0).all():
            return rows
        _, at = np.unique(rows["step"][::-1], return_index=True)
        return rows[::-1][at]

    @cached_property
    def look(self) -> LineTimesEvent | None:
        """The lines of an ordinary step, as they were timed last."""
        looks = [look for event in self.events if (look := look_of(event))]
        kinds = ("reference", "look", "waits")
        ordinary = [each for each in looks if each.record.look in kinds and not each.record.rare]
        return ordinary[-1] if ordinary else None

    @property
    def loader(self) -> Origin:
        """File and line that made its loader, where known."""
        return origin(self.facts.loader)

    @property
    def made(self) -> Origin:
        """File and line that made its optimizer, where known."""
        return origin(self.facts.made)

    @property
    def last_step(self) -> int:
        """The newest step with a row; -1 without one."""
        return int(self.rows["step"].max()) if len(self.rows) else -1

    def events_of(self, *kinds: str) -> list[Event]:
        """Its events of some kinds, in their order."""
        return [event for event in self.events if event.kind in kinds]

    def records_of(self, kind: type[K]) -> list[K]:
        """What its events of a kind hold, in their order."""
        return [found for event in self.events if (found := kind.of(event)) is not None]


_ALONE = Parallel()


class RankDetector(Detector):
    """Base class of detectors that compare ranks; of one lane alone they say nothing."""

    def scan(self, window: Window) -> Iterator[Finding]:
        """Nothing: one lane says nothing about ranks."""
        return iter(())

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """Findings about the ranks of one start of a run, one lane each, in their order."""
        raise NotImplementedError

    def about(
        self,
        lanes: Sequence[RankLane],
        *,
        step: int,
        rank: int,
        what: str,
        advice: str,
        evidence: Mapping[str, Any],
        severity: Severity | None = None,
        confidence: float = 1.0,
        file: str = "",
        line: int = 0,
    ) -> Finding:
        """Make a Finding about these lanes; ``rank`` is the one that is named first."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=self.severity if severity is None else severity,
            step=step,
            last_step=step,
            rank=rank,
            message=f"step {step}: {what}",
            advice=advice,
            confidence=confidence,
            file=file,
            line=line,
            evidence={
                "count": 1,
                "skipped": 0,
                "steps": [step],
                "ranks": [lane.rank for lane in lanes],
                **evidence,
            },
        )


def replicas(lanes: Sequence[RankLane]) -> str:
    """How these ranks train one model together: ``ddp``, ``fsdp``, or ``""``.

    Also ``""`` where they do not agree about it, or train models of different layers.
    """
    kinds = {lane.facts.wrapper for lane in lanes}
    return kinds.pop() if len(kinds) == 1 and same_model(lanes) else ""


def same_model(lanes: Sequence[RankLane]) -> bool:
    """Whether ranks of one process group train models of the same layers."""
    groups = {lane.facts.group for lane in lanes}
    models = {lane.facts.model for lane in lanes}
    return len(groups) == len(models) == 1 and min(groups) > 1


def side_by_side(lanes: Sequence[RankLane], *names: str) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    """The steps that all ranks have recorded, and for each column an array (ranks, steps)."""
    common = lanes[0].steps["step"]
    for lane in lanes[1:]:
        if not np.array_equal(common, lane.steps["step"]):
            common = np.intersect1d(common, lane.steps["step"], assume_unique=True)
    places = [np.searchsorted(lane.steps["step"], common) for lane in lanes]
    return common, [
        np.stack([column(lane.steps, n)[at] for lane, at in zip(lanes, places, strict=True)])
        for n in names
    ]


def origin(made: MadeAt) -> Origin:
    """The line of a record.

    >>> origin(MadeAt(file="train.py", line=7)), origin(MadeAt())
    (('train.py', 7), ('', 0))
    """
    return made.file, made.line


def spot(at: Origin) -> str:
    """`` at train.py:7``, or nothing.

    >>> spot(("src/train.py", 7)), spot(("", 0))
    (' at train.py:7', '')
    """
    return f" at {at[0].rpartition('/')[2]}:{at[1]}" if at[1] else ""


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0, 2 and 5``.

    >>> named([1]), named([0, 2, 5])
    ('rank 1', 'ranks 0, 2 and 5')
    """
    numbers = [str(rank) for rank in ranks]
    joined = " and ".join(filter(None, [", ".join(numbers[:-1]), numbers[-1]]))
    return f"rank{'s' * (len(numbers) > 1)} {joined}"


def number(data: Mapping[str, Any], name: str) -> float:
    """A number among the data of an event; 0 where there is none."""
    value = data.get(name)
    return float(value) if isinstance(value, int | float) else 0.0

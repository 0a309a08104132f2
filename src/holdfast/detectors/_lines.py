"""Line timings of the user's code, as the throughput detectors judge them.

The training side records them (``records.lines``); here a line has its places instead of their
numbers, and a place the source around it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..records.lines import CodePlaces, LineCost, StepCounts, TimedLines, TimedStep
from ..types import Event

# Lines of an excerpt on either side of a statement.
_NEAR = 4


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's code, and what the source says there."""

    file: str
    line: int
    first: int = field(default=0, compare=False)
    """The first line of the statement."""
    code: str = field(default="", compare=False)
    calls: tuple[str, ...] = field(default=(), compare=False)
    """Dotted names of what the statement calls."""
    loop: tuple[int, int] = field(default=(0, 0), compare=False)
    """First and last line of the loop that it starts or is in."""
    excerpt: tuple[tuple[int, str], ...] = field(default=(), compare=False)
    """The lines around it; empty in records of earlier versions."""
    head: str = field(default="", compare=False)
    """First line of that loop."""

    def calls_any(self, names: Collection[str]) -> bool:
        """Whether the statement calls one of these, with or without an owner in front."""
        return any(call in names or call.split(".")[-1] in names for call in self.calls)

    @property
    def words(self) -> set[str]:
        """Parts of the names of what it calls."""
        return {word for call in self.calls for word in words_of(call.split(".")[-1])}


@dataclass(slots=True)
class CostlyLine:
    """What one line costs in a step."""

    path: tuple[SourceLine, ...]
    """The user's lines that led here, outermost first, itself last."""
    function: str
    mark: str
    """``fetch``, ``model``, ``backward``, ``optimizer`` or "" for the loop's own work."""
    direct: bool
    """The line's own code took the time, not the model or the optimizer that it called."""
    seconds: float
    hits: float
    cache: SourceLine | None = None
    """Line of the call stack that reads a cache."""

    @property
    def at(self) -> SourceLine:
        """The line itself."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """The training loop."""

    path: tuple[SourceLine, ...]
    """The call stack down to the line that takes the step."""
    depth: int
    """Index of the one in the loop."""
    first: int
    last: int

    def holds(self, line: CostlyLine) -> bool:
        """Whether a line runs within a turn of the loop, not around it."""
        if len(line.path) <= self.depth or line.path[: self.depth] != self.path[: self.depth]:
            return False
        return self.spans(line.path[self.depth])

    def spans(self, place: SourceLine) -> bool:
        """Whether a line is in the loop body itself."""
        return place.file == self.path[self.depth].file and self.first <= place.line <= self.last

    def inner(self, line: CostlyLine) -> SourceLine:
        """The line in the loop itself that a line was called from."""
        return line.path[self.depth]

    def is_loop(self, file: str, first: int) -> bool:
        """Whether the loop that starts at a line is this one."""
        return (file, first) == (self.path[self.depth].file, self.first)


@dataclass(frozen=True, slots=True)
class LineProfile:
    """The lines of a step, and what was counted of it."""

    seconds: float
    per_model: float
    """Numbers in the inputs of one model call."""
    lines: Sequence[CostlyLine]
    counts: StepCounts

    def spent(self, *marks: str) -> float:
        """Seconds within models, ``backward``, ..."""
        return sum(line.seconds for line in self.lines if line.mark in marks)

    def own(self, turn: TrainingLoop) -> dict[SourceLine, CostlyLine]:
        """The loop's own work, line by line: not of the model, the loader, the optimizer."""
        own = [line for line in self.lines if not line.mark and line.direct and turn.holds(line)]
        return by_place(own)


class Stalled(NamedTuple):
    """A step far above the typical one."""

    step: int
    excess: float
    begins_epoch: bool


@dataclass(frozen=True, slots=True)
class LineTimesEvent:
    """One ``line_times`` event, its lines with their places."""

    record: TimedLines
    turn: TrainingLoop | None
    outer: TrainingLoop | None
    """The loop around it, as of epochs."""
    now: LineProfile
    baseline: LineProfile | None
    stalls: Sequence[Stalled]
    registering: Sequence[SourceLine]
    """Lines that register hooks or parametrizations."""
    feeds: Sequence[SourceLine]
    """Lines that make what a backward pass goes through, as the source says."""
    history: Mapping[SourceLine, str]
    """What a line reads, or one that leads to it, and the source lets grow."""


def look_of(event: Event) -> LineTimesEvent | None:
    """What a ``line_times`` event says; None for another one, and for one that is none."""
    record = TimedLines.of(event)
    if record is None:
        return None
    places = places_of(record)
    turn = outer = None
    if record.turn is not None:
        path = tuple(places[number] for number in record.turn.path)
        turn, outer = TrainingLoop(path, *record.turn.loop), TrainingLoop(path, *record.turn.outer)
    return LineTimesEvent(
        record=record,
        turn=turn,
        outer=outer,
        now=_profile(record.now, places),
        baseline=None if record.baseline is None else _profile(record.baseline, places),
        stalls=[Stalled(*stall) for stall in record.stalls],
        registering=[places[number] for number in record.registering],
        feeds=[places[number] for number in record.feeds],
        history={places[number]: name for number, name in record.history},
    )


def places_of(record: CodePlaces) -> list[SourceLine]:
    """The places of an event by their numbers, each with the source around it."""
    source = [dict(lines) for lines in record.source] or [dict[int, str]() for _ in record.files]
    found: list[SourceLine] = []
    for place in record.places:
        (file, line), text = place.at, source[place.at[0]]
        near = range(place.first - _NEAR, line + _NEAR + 1)
        found.append(
            SourceLine(
                file=record.files[file],
                line=line,
                first=place.first,
                code=place.code,
                calls=place.calls,
                loop=place.loop,
                excerpt=tuple((number, text[number]) for number in near if number in text),
                head=text.get(place.loop[0], ""),
            )
        )
    return found


def line_at(cost: LineCost, places: Sequence[SourceLine]) -> CostlyLine:
    """One line with its places."""
    return CostlyLine(
        path=tuple(places[number] for number in cost.path),
        function=cost.function,
        mark=cost.mark,
        direct=cost.direct,
        seconds=cost.seconds,
        hits=cost.hits,
        cache=None if cost.cache is None else places[cost.cache],
    )


def _profile(step: TimedStep, places: Sequence[SourceLine]) -> LineProfile:
    lines = [line_at(cost, places) for cost in step.lines]
    return LineProfile(step.seconds, step.per_model, lines, step)


def by_place(lines: Iterable[CostlyLine]) -> dict[SourceLine, CostlyLine]:
    """Sum the lines at the same place, whoever called them."""
    found: dict[SourceLine, CostlyLine] = {}
    for line in lines:
        known = found.get(line.at)
        if known is None:
            found[line.at] = replace(line)
            continue
        if line.seconds > known.seconds:
            known.mark, known.direct = line.mark, line.direct
        known.seconds += line.seconds
        known.hits = max(known.hits, line.hits)
    return found


def work_before_model(look: LineTimesEvent) -> list[CostlyLine]:
    """Lines of the loop's own work before it calls the model: mostly they make the batch."""
    turn = look.turn
    if turn is None or look.record.rare or look.record.look == "stall":
        return []
    calling = [line for line in look.now.lines if not line.direct and turn.holds(line)]
    models = [line for line in calling if line.mark == "model"]
    # A line that calls a model is part of the training, also where it does so through others: what
    # a framework does below it comes before the model and after it.
    asked = {at for line in look.now.lines if line.mark == "model" for at in line.path}
    own = [line for at, line in look.now.own(turn).items() if at not in asked]
    return [line for line in own if _precedes(line, models)]


def _precedes(line: CostlyLine, others: Sequence[CostlyLine]) -> bool:
    """Whether a line comes before all others where their call stacks diverge."""
    for other in others:
        for own_part, its in zip(line.path, other.path, strict=False):
            if own_part != its:
                if own_part.file == its.file and own_part.line > its.line:
                    return False
                break
    return bool(others)


def words_of(name: str) -> list[str]:
    """``saveBest_model`` as ``save``, ``best``, ``model``."""
    return re.findall(r"[a-z]+", re.sub("([A-Z])", r"_\1", name).lower())

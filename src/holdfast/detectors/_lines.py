"""Line timings of the user's code, as the throughput detectors read them from an Event.

The training side records them (``line_times``, ``loader_times``, ``tensor_reads``); this module
parses them. An incomplete event is no measurement: ``None``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..types import Event

# Lines of an excerpt on either side of a statement.
_NEAR = 4


@dataclass(frozen=True, slots=True)
class Place:
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
class Line:
    """What one line costs in a step."""

    path: tuple[Place, ...]
    """The user's lines that led here, outermost first, itself last."""
    function: str
    mark: str
    """``fetch``, ``model``, ``backward``, ``optimizer`` or "" for the loop's own work."""
    direct: bool
    """The line's own code took the time, not the model or the optimizer that it called."""
    seconds: float
    hits: float
    cache: Place | None = None
    """Line of the call stack that reads a cache."""

    @property
    def at(self) -> Place:
        """The line itself."""
        return self.path[-1]


@dataclass(frozen=True, slots=True)
class Turn:
    """The training loop."""

    path: tuple[Place, ...]
    """The call stack down to the line that takes the step."""
    depth: int
    """Index of the one in the loop."""
    first: int
    last: int

    def holds(self, line: Line) -> bool:
        """Whether a line runs within a turn of the loop, not around it."""
        if len(line.path) <= self.depth or line.path[: self.depth] != self.path[: self.depth]:
            return False
        return self.spans(line.path[self.depth])

    def spans(self, place: Place) -> bool:
        """Whether a line is in the loop body itself."""
        return place.file == self.path[self.depth].file and self.first <= place.line <= self.last

    def inner(self, line: Line) -> Place:
        """The line in the loop itself that a line was called from."""
        return line.path[self.depth]

    def is_loop(self, file: str, first: int) -> bool:
        """Whether the loop that starts at a line is this one."""
        return (file, first) == (self.path[self.depth].file, self.first)


@dataclass(frozen=True, slots=True)
class Profile:
    """The lines of a step, and what was counted of it."""

    seconds: float
    per_model: float
    """Numbers in the inputs of one model call."""
    lines: Sequence[Line]
    counts: Mapping[str, float]

    def count(self, name: str) -> float:
        """One of the counts; 0 where it was not measured."""
        return self.counts.get(name, 0.0)

    def spent(self, *marks: str) -> float:
        """Seconds within models, ``backward``, ..."""
        return sum(line.seconds for line in self.lines if line.mark in marks)

    def own(self, turn: Turn) -> dict[Place, Line]:
        """The loop's own work, line by line: not of the model, the loader, the optimizer."""
        own = [line for line in self.lines if not line.mark and line.direct and turn.holds(line)]
        return by_place(own)


@dataclass(frozen=True, slots=True)
class Times:
    """Step times of a run in seconds, when an event was recorded."""

    fastest_block: float
    """Median of the fastest eight consecutive steps."""
    last_block: float
    """Median of the last eight steps."""
    typical: float
    """Typical recent step without a stall."""
    waiting: float
    """Share of the last steps that was spent waiting for data."""
    busier: bool
    """The processor is busier than in the fastest block."""
    seconds: float
    """All steps."""


@dataclass(frozen=True, slots=True)
class Stalled:
    """A step far above the typical one."""

    step: int
    excess: float
    begins_epoch: bool


@dataclass(frozen=True, slots=True)
class Look:
    """One ``line_times`` event."""

    purpose: str
    """``reference``, ``look``, ``waits``, ``slow`` or ``stall``."""
    rare: bool
    """Only the few steps that waited long were timed."""
    times: Times
    batch: int
    passes: int
    turn: Turn | None
    outer: Turn | None
    """The loop around it, as of epochs."""
    now: Profile
    baseline: Profile | None
    registering: Sequence[Place]
    """Lines that register hooks or parametrizations."""
    stalls: Sequence[Stalled]
    feeds: Sequence[Place] = ()
    """Lines that make what a backward pass goes through, as the source says."""
    history: Mapping[Place, str] = field(default_factory=dict[Place, str])
    """What a line reads, or one that leads to it, and the source lets grow."""
    cores: int = 0
    """Cores that the process may use; 0 where it is not recorded."""
    ranks: int = 1
    """Ranks that train together, and wait for each other in backward."""


def read_look(event: Event) -> Look | None:
    """A ``line_times`` event; None where it is not complete."""
    data: Any = event.data
    try:
        places = read_places(data)
        turn = outer = None
        if data["turn"] is not None:
            path = _path(data["turn"]["path"], places)
            turn, outer = _turn(path, *data["turn"]["loop"]), _turn(path, *data["turn"]["outer"])
        return Look(
            purpose=str(data["look"]),
            rare=bool(data["rare"]),
            times=read_times(data),
            batch=int(data["batch"]),
            passes=int(data["passes"]),
            turn=turn,
            outer=outer,
            now=_profile(data["now"], places),
            baseline=_profile(data["baseline"], places) if data.get("baseline") else None,
            registering=[places[int(i)] for i in data.get("registering", ())],
            stalls=[_stalled(*stall) for stall in data.get("stalls", ())],
            feeds=[places[int(i)] for i in data.get("feeds", ())],
            history={places[int(i)]: str(name) for i, name in data.get("history", ())},
            cores=int(data.get("cores", 0)),
            ranks=int(data.get("ranks", 1)),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None


def read_times(data: Mapping[str, Any]) -> Times:
    """Parse step times; like all below, raises where something is missing."""
    given = {name: float(value) for name, value in dict(data["times"]).items()}
    return Times(busier=bool(given.pop("busier")), **given)


def _stalled(step: Any, excess: Any, begins_epoch: Any) -> Stalled:
    return Stalled(int(step), float(excess), bool(begins_epoch))


def _turn(path: tuple[Place, ...], depth: Any, first: Any, last: Any) -> Turn:
    if not 0 <= int(depth) < len(path):
        raise ValueError(f"the loop is number {depth} of {len(path)} places")
    return Turn(path, int(depth), int(first), int(last))


def _path(numbers: Any, places: Sequence[Place]) -> tuple[Place, ...]:
    """The places of a call stack; there is always one."""
    found = tuple(places[int(number)] for number in numbers)
    if not found:
        raise ValueError("a line without a place")
    return found


def read_places(data: Mapping[str, Any]) -> list[Place]:
    """The places of an event, by their numbers."""
    found: list[Place] = []
    for place in data["places"]:
        file, line = place["at"]
        low, high = place.get("loop", (0, 0))
        calls = tuple(map(str, place["calls"]))
        place_at = str(data["files"][file]), int(line), int(place["first"]), str(place["code"])
        source = (
            {int(n): str(text) for n, text in data["source"][file]} if data.get("source") else {}
        )
        near = range(int(place["first"]) - _NEAR, int(line) + _NEAR + 1)
        around = tuple((n, source[n]) for n in near if n in source)
        found.append(
            Place(*place_at, calls, (int(low), int(high)), around, source.get(int(low), ""))
        )
    return found


def read_line(data: Mapping[str, Any], places: Sequence[Place]) -> Line:
    """One line."""
    return Line(
        path=_path(data["path"], places),
        function=str(data["function"]),
        mark=str(data["mark"]),
        direct=bool(data["direct"]),
        seconds=float(data["seconds"]),
        hits=float(data["hits"]),
        cache=places[int(data["cache"])] if "cache" in data else None,
    )


def _profile(data: Mapping[str, Any], places: Sequence[Place]) -> Profile:
    counts = {k: float(v) for k, v in data.items() if isinstance(v, int | float)}
    lines = [read_line(line, places) for line in data["lines"]]
    return Profile(counts["seconds"], counts["per_model"], lines, counts)


def by_place(lines: Iterable[Line]) -> dict[Place, Line]:
    """Sum the lines at the same place, whoever called them."""
    found: dict[Place, Line] = {}
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


def work_before_model(look: Look) -> list[Line]:
    """Lines of the loop's own work before it calls the model: mostly they make the batch."""
    turn = look.turn
    if turn is None or look.rare or look.purpose == "stall":
        return []
    calling = [line for line in look.now.lines if not line.direct and turn.holds(line)]
    models = [line for line in calling if line.mark == "model"]
    # A line that calls a model is part of the training, also where it does so through others: what
    # a framework does below it comes before the model and after it.
    asked = {at for line in look.now.lines if line.mark == "model" for at in line.path}
    own = [line for at, line in look.now.own(turn).items() if at not in asked]
    return [line for line in own if _precedes(line, models)]


def _precedes(line: Line, others: Sequence[Line]) -> bool:
    """Whether a line comes before all others where their call stacks diverge."""
    for other in others:
        for mine, its in zip(line.path, other.path, strict=False):
            if mine != its:
                if mine.file == its.file and mine.line > its.line:
                    return False
                break
    return bool(others)


def words_of(name: str) -> list[str]:
    """``saveBest_model`` as ``save``, ``best``, ``model``."""
    return re.findall(r"[a-z]+", re.sub("([A-Z])", r"_\1", name).lower())

"""Measured lines as parts of an Event, with what the source says at each of them.

A place (file and line) is written down once and referred to by its number (``records.lines``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import TypedDict

from ...records.lines import CodePlace, LineCost, Numbers, TimedLoop, TimedStep
from ...source.caches import asked_before
from ...source.contents import registers
from ...source.excerpts import excerpt_at
from ...source.files import line_at
from ...source.growth import habits
from ...source.loops import loop_of
from ...source.paths import from_here
from ...source.statements import statement_at, text_at
from ...source.syntax import head_of, last_name
from ...source.training_calls import training_in
from .line_tree import FETCH
from .profiles import (
    ProfiledLine,
    Spot,
    StepLoop,
    StepProfile,
    outer,
)

# Lines of an event, and those that lead to the models and optimizers beside them.
_LINES = 48
_LEADING = 6
# Share of a step that a line must take.
_SHARE = 0.01
_CODE = 160
# Files that are read for what leads to a backward pass.
_FILES = 16
# Lines of source in one event: some fifteen places with what stands around them.
_SOURCE = 160


class ReportedPlaces(TypedDict):
    """Those fields of an event that say which places its numbers mean."""

    files: tuple[str, ...]
    places: tuple[CodePlace, ...]
    source: tuple[tuple[tuple[int, str], ...], ...]


class MeasuredLines:
    """The places of one event."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._known: dict[Spot, int] = {}
        self._places: list[CodePlace] = []
        self._source: dict[str, dict[int, str]] = {}
        self._lines = 0

    def number(self, spot: Spot) -> int:
        """The number of a place, which is written down when it is asked for first."""
        if spot not in self._known:
            file, line = spot
            at, loop = text_at(file, line), loop_of(file, line)
            place = CodePlace(
                at=(self._files.setdefault(file, len(self._files)), line),
                first=at.first,
                code=at.text[:_CODE],
                calls=at.calls[:12],
                loop=loop if loop[0] else (0, 0),
            )
            self._known[spot] = len(self._places)
            self._places.append(place)
            self._quote(excerpt_at(file, line).lines, file)
            if loop[0]:
                self._quote([(loop[0], line_at(file, loop[0]))], file)
        return self._known[spot]

    def line(self, line: ProfiledLine) -> LineCost:
        """One line; one that is passed for its data also with the cache that is asked before."""
        path = tuple(self.number(spot) for spot in line.path)
        cache = asked_before(line.path) if line.mark == FETCH else None
        return LineCost(
            path=path,
            function=line.function,
            mark=line.mark,
            direct=line.direct,
            seconds=round(line.seconds, 8),
            hits=round(line.hits, 1),
            cache=None if cache is None else self.number(cache),
        )

    def profile(self, profile: StepProfile, beside: StepProfile | None = None) -> TimedStep:
        """The lines of a step that matter, there or in another step beside it."""
        spots = {line.spot for line in _matter(profile)}
        spots |= {line.spot for line in _matter(beside)} if beside is not None else set[Spot]()
        lines = [line for line in profile.lines if line.spot in spots][:_LINES]
        chosen = {id(line) for line in lines}
        lines += [line for line in _leading(profile.lines) if id(line) not in chosen]
        counts = profile.counts
        return TimedStep(
            seconds=round(profile.seconds, 8),
            per_model=round(profile.per_model, 1),
            lines=tuple(self.line(line) for line in lines),
            parameters=counts.parameters,
            registered=counts.registered,
            registered_before=counts.registered_before,
            retries=counts.retries,
            delayed=counts.delayed,
        )

    def turn(self, turn: StepLoop) -> TimedLoop:
        """The loop of the steps and the one around it."""
        around = outer(turn)
        return TimedLoop(
            path=tuple(self.number(spot) for spot in turn.path),
            loop=(turn.depth, turn.first, turn.last),
            outer=(around.depth, around.first, around.last),
        )

    def registering(self) -> Numbers:
        """Lines that register hooks or parametrizations, in the files so far."""
        found = [(file, line) for file in self._files for line in registers(file)]
        return tuple(self.number(spot) for spot in found[:_LEADING])

    def feeding(self, profile: StepProfile) -> Numbers:
        """Lines that make what a backward pass goes through."""
        spots = [spot for line in _matter(profile) for spot in line.path]
        training = training_in(tuple(dict.fromkeys(file for file, _ in spots))[:_FILES])
        made = training.lines | training.handed
        return tuple(
            self.number(spot)
            for spot in dict.fromkeys(spots)
            if (found := statement_at(*spot)) is not None and (spot[0], found.node.lineno) in made
        )

    def history(self, profile: StepProfile) -> tuple[tuple[int, str], ...]:
        """Lines with what they read, or a line that leads there, and the source lets grow."""
        found: list[tuple[int, str]] = []
        for line in _matter(profile):
            if line.direct and (name := next(filter(None, map(_growing, line.path[::-1])), "")):
                found.append((self.number(line.spot), name))
        return tuple(found)

    def reported(self) -> ReportedPlaces:
        """All that have a number so far: the last arguments of the event that refers to them."""
        source = (sorted(self._source.get(file, {}).items()) for file in self._files)
        return {
            "files": tuple(from_here(file) for file in self._files),
            "places": tuple(self._places),
            "source": tuple(map(tuple, source)),
        }

    def _quote(self, lines: Iterable[tuple[int, str]], file: str) -> None:
        """Keep lines of the source, each once."""
        known = self._source.setdefault(file, {})
        for number, text in lines:
            if number not in known and self._lines < _SOURCE:
                known[number] = text[:_CODE]
                self._lines += 1


def _matter(profile: StepProfile) -> list[ProfiledLine]:
    least = _SHARE * profile.seconds
    return [line for line in profile.lines if line.seconds >= least]


def _growing(spot: Spot) -> str:
    """What the statement at a line reads that grows with the turns of a loop; "" for nothing."""
    found = statement_at(*spot)
    if found is None:
        return ""
    scope = found.functions[-1].name if found.functions else ""
    for part in (p for each in head_of(found.node) for p in ast.walk(each)):
        if name := last_name(part):
            known = habits(spot[0], name, scope if isinstance(part, ast.Name) else "")
            if known.grows and not known.shrinks and not known.capped:
                return ast.unparse(part)
    return ""


def _leading(lines: Sequence[ProfiledLine]) -> Iterable[ProfiledLine]:
    """The outermost lines that call a model, ``backward`` or an optimizer."""
    for mark in ("model", "backward", "optimizer"):
        calling = [line for line in lines if line.mark == mark and not line.direct]
        yield from sorted(calling, key=lambda line: len(line.path))[:_LEADING]

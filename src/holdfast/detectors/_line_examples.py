"""Made-up measurements of lines, for the examples of detectors that judge them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..records.lines import CodePlace, LineCost, StepPace, TimedLines, TimedLoop, TimedStep

FILE = "src/train.py"
LOOP = (50, 60)
PACE = StepPace(
    fastest_block=0.002, last_block=0.005, typical=0.002, waiting=0.0, busier=True, seconds=4.0
)

Sources = Mapping[int, Mapping[str, Any]]
Cost = tuple[int, float, Mapping[str, Any]]
"""Number of a line, its seconds, and what differs from a line of the loop."""


class NumberedLines:
    """Numbers the lines of one file, with what the source says there."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.places: list[CodePlace] = []
        self.known: dict[int, int] = {}

    def __call__(self, line: int) -> int:
        if line not in self.known:
            self.known[line] = len(self.places)
            facts: dict[str, Any] = {"code": "x = slow(y)  # as it was", "calls": ("slow",)}
            facts |= self.sources.get(line, {})
            self.places.append(CodePlace(at=(0, line), first=line, **facts))
        return self.known[line]

    def line(self, line: int, seconds: float, **more: Any) -> LineCost:
        """What a line costs."""
        path = tuple(self(at) for at in more.pop("path", (line,)))
        if "cache" in more:
            more["cache"] = self(more["cache"])
        facts: dict[str, Any] = {"function": "f", "mark": "", "direct": True, "hits": 1.0}
        return LineCost(path=path, seconds=seconds, **(facts | more))

    def reported(self) -> dict[str, Any]:
        """The last arguments of an event."""
        return {"files": (FILE,), "places": tuple(self.places)}


def profile(places: NumberedLines, lines: Sequence[Cost], **counts: Any) -> TimedStep:
    """A step of these lines."""
    lines_of_step = tuple(places.line(line, seconds, **more) for line, seconds, more in lines)
    total = sum(cost.seconds for cost in lines_of_step)
    facts: dict[str, Any] = {"seconds": total, "per_model": 16.0} | counts
    return TimedStep(lines=lines_of_step, **facts)


def timed_lines(
    purpose: Any,
    now: Sequence[Cost],
    baseline: Sequence[Cost] | None = None,
    *,
    sources: Sources | None = None,
    counts: Mapping[str, float] | None = None,
    counted: Mapping[str, float] | None = None,
    times: Mapping[str, Any] | None = None,
    registering: Sequence[int] = (),
    feeds: Sequence[int] = (),
    history: Mapping[int, str] | None = None,
    **more: Any,
) -> TimedLines:
    """The lines of a step now, and at the beginning where there is a ``baseline``."""
    places = NumberedLines(sources or {})
    record = TimedLines(
        look=purpose,
        rare=False,
        times=PACE.replace(**(times or {})),
        batch=4,
        cores=8,
        passes=1,
        turn=TimedLoop(path=(places(LOOP[0] + 1),), loop=(0, *LOOP), outer=(0, 40, 70)),
        now=profile(places, now, **(counted or {})),
        registering=tuple(places(line) for line in registering),
        feeds=tuple(places(line) for line in feeds),
        history=tuple((places(line), name) for line, name in (history or {}).items()),
        baseline=None if baseline is None else profile(places, baseline, **(counts or {})),
        **places.reported(),
    )
    return record.replace(**more)


def costs(number: int, seconds: float, **facts: Any) -> Cost:
    """A line of the loop itself, or what ``facts`` say."""
    return number, seconds, facts


def called(number: int, seconds: float, mark: str) -> Cost:
    """A line of the loop that calls a model, ``backward`` or an optimizer."""
    return costs(number, seconds, mark=mark, direct=False, hits=0.0)

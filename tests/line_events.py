"""Events of measured lines as the training side writes them, made up for detectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.records import Kind
from holdfast.records.lines import (
    CodePlace,
    LineCost,
    ReadingLine,
    StepPace,
    TensorReads,
    TimedLines,
    TimedLoader,
    TimedLoop,
    TimedStep,
)
from holdfast.records.times import Recompiled

FILE = "src/train.py"
LOOP = (50, 60)
PACE = StepPace(
    fastest_block=0.002, last_block=0.005, typical=0.002, waiting=0.0, busier=True, seconds=4.0
)

Sources = Mapping[int, Mapping[str, Any]]


class Places:
    """Numbers the lines of one file, with what the source says there."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.places: list[CodePlace] = []
        self.known: dict[int, int] = {}

    def __call__(self, line: int) -> int:
        if line not in self.known:
            self.known[line] = len(self.places)
            facts = {"code": "x = slow(y)  # as it was", "calls": ("slow",)}
            facts |= self.sources.get(line, {})
            self.places.append(CodePlace(at=(0, line), first=line, **facts))
        return self.known[line]

    def line(self, line: int, seconds: float, **more: Any) -> LineCost:
        path = tuple(self(at) for at in more.pop("path", (line,)))
        if "cache" in more:
            more["cache"] = self(more["cache"])
        facts = {"function": "f", "mark": "", "direct": True, "hits": 1.0}
        return LineCost(path=path, seconds=seconds, **{**facts, **more})

    def told(self) -> dict[str, Any]:
        """The last arguments of an event."""
        return {"files": (FILE,), "places": tuple(self.places)}


def profile(
    places: Places, lines: Sequence[tuple[int, float, dict[str, Any]]], **counts: Any
) -> TimedStep:
    costs = tuple(places.line(line, seconds, **more) for line, seconds, more in lines)
    total = sum(cost.seconds for cost in costs)
    return TimedStep(**{"seconds": total, "per_model": 16.0, "lines": costs, **counts})


def plain(record: Kind, more: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Kind and data of an event; with something else in some of its fields."""
    return record.kind, record.replace(**more).to_dict()


def look(
    purpose: Any,
    now: Sequence[tuple[int, float, dict[str, Any]]],
    baseline: Sequence[tuple[int, float, dict[str, Any]]] | None = None,
    *,
    sources: Sources | None = None,
    counts: Mapping[str, float] | None = None,
    counted: Mapping[str, float] | None = None,
    times: Mapping[str, Any] | None = None,
    registering: Sequence[int] = (),
    feeds: Sequence[int] = (),
    history: Mapping[int, str] | None = None,
    **more: Any,
) -> tuple[str, dict[str, Any]]:
    """A ``line_times`` event; each line is (number, seconds, what differs from the loop's own)."""
    places = Places(sources or {})
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
        **places.told(),
    )
    return plain(record, more)


def fetches(line: int, seconds: float, **more: Any) -> tuple[int, float, dict[str, Any]]:
    """A line of the dataset."""
    return line, seconds, {"mark": "fetch", **more}


def called(line: int, seconds: float, mark: str) -> tuple[int, float, dict[str, Any]]:
    """A line of the loop that calls a model, ``backward`` or an optimizer."""
    return line, seconds, {"mark": mark, "direct": False, "hits": 0.0}


def waits(line_seconds: float = 0.0012, waiting: float = 0.6, *, caches: bool = False, **more: Any):
    """The loop waits for a dataset whose line 7 is slow."""
    asked = {"cache": 3} if caches else {}
    now = [fetches(7, line_seconds, **asked)]
    now += [called(55, 0.0005, "model"), called(57, 0.0005, "optimizer")]
    times = {"waiting": waiting} | more.pop("times", {})
    return look("waits", now, times=times, **more)


def stalls(**more: Any):
    """Line 57 saves the state every five steps."""
    facts = {"calls": ["torch.save"], "code": "torch.save(state, path)  # as it was"}
    counted = {"stalls": [[step, 0.02, False] for step in range(10, 60, 5)]}
    given = {"sources": {57: facts}, **counted, **more}
    return look("stall", [(57, 0.02, {}), (52, 0.002, {})], [(52, 0.002, {})], **given)


def slower(seconds: float = 0.0035, **more: Any):
    """Line 57 takes longer than at first."""
    now, before = (57, seconds, {}), (57, 0.0005, {})
    rest = called(52, 0.0015, "model")
    return look("slow", [now, rest], [before, rest], **more)


def reads(**more: Any):
    """Line 57 reads 64 numbers in each step."""
    places = Places({})
    read = ReadingLine(
        path=(places(57),), function="f", read="item", direct=True, count=64,
        seconds=0.0001, loop_seconds=0.0009,
    )  # fmt: skip
    record = TensorReads(
        reads=(read.replace(**more),), models=1.0, step_seconds=0.003, times=PACE, **places.told()
    )
    return plain(record, {})


def compiled(**more: Any):
    """A function is compiled again and again."""
    record = Recompiled(
        file=FILE, line=57, code="x = slow(y)  # as it was", name="forward", defined="a.py:3",
        times=3, same=3, seconds=2.0, guard="k == 3", trained=4.0,
    )  # fmt: skip
    return plain(record, more)


def loader(slowest: Any = (None, 0.004), samples: int = 1, **more: Any):
    """Line 7 of a dataset keeps two workers busy."""
    places = Places({})
    record = TimedLoader(
        rare=False,
        times=PACE.replace(waiting=0.6),
        workers=2,
        passes=1,
        samples=samples,
        per_sample=0.004,
        made=0.016,
        cores=8,
        slowest=slowest,
        lines=(places.line(7, 0.003, mark="fetch"), places.line(8, 0.001, mark="fetch")),
        asks=places.line(50, 0.0, hits=0.0),
        may_fetch=False,
        **places.told(),
    )
    return plain(record, more)

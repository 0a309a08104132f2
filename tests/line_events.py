"""Events of measured lines as the training side writes them, made up for detectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.detectors._line_examples import FILE, PACE, NumberedLines, called, timed_lines
from holdfast.records import Kind
from holdfast.records.lines import ReadingLine, TensorReads, TimedLoader
from holdfast.records.times import Recompiled


def plain(record: Kind, more: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Kind and data of an event; with something else in some of its fields."""
    return record.kind, record.replace(**more).to_dict()


def look(*args: Any, **more: Any) -> tuple[str, dict[str, Any]]:
    """A ``line_times`` event; each line is (number, seconds, what differs from the loop's own)."""
    return plain(timed_lines(*args, **more), {})


def fetches(line: int, seconds: float, **more: Any) -> tuple[int, float, dict[str, Any]]:
    """A line of the dataset."""
    return line, seconds, {"mark": "fetch", **more}


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
    places = NumberedLines({})
    read = ReadingLine(
        path=(places(57),), function="f", read="item", direct=True, count=64,
        seconds=0.0001, loop_seconds=0.0009,
    )  # fmt: skip
    record = TensorReads(
        reads=(read.replace(**more),),
        models=1.0,
        step_seconds=0.003,
        times=PACE,
        **places.reported(),
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
    places = NumberedLines({})
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
        **places.reported(),
    )
    return plain(record, more)

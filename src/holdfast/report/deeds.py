"""What holdfast did to a run, one line each: the only things it ever changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..run import LaneData
from ..types import Event
from . import words
from .lanes import LaneSummary
from .record import Record

_REPLAYED = {
    "replay": "Ran a poisoned batch again to find the line",
    "next": "Watched a later step closely to find the line",
    "look": "Looked at the values of a bad step",
}
_TOLD = 6


@dataclass(frozen=True, kw_only=True)
class Deed:
    """One kind of action: what, when, and why or how."""

    what: str
    when: str
    why: str = ""


def deeds_of(record: Record) -> list[Deed]:
    """Everything that was done, what matters most first; what ranks did together is told once."""
    done: dict[Deed, list[int]] = {}
    for lane, summary in zip(record.lanes, record.summary.lanes, strict=True):
        for deed in _lane(lane, summary):
            done.setdefault(deed, []).append(lane.rank)
    if record.ranks < 2:
        return list(done)
    return [replace(deed, what=f"{deed.what} ({words.ranks(who)})") for deed, who in done.items()]


def _lane(lane: LaneData, summary: LaneSummary) -> Iterable[Deed]:
    names = lane.steps.dtype.names or ()
    if summary.skipped and "skipped" in names:
        steps = np.unique(lane.steps["step"][lane.steps["skipped"] > 0]).tolist()
        # Of a long run not every row is left, but how many there were is known.
        yield Deed(
            what="Left poisoned steps out",
            when=span(steps, summary.skipped),
            why="weights, optimizer state and buffers are as if the step had never been taken",
        )
    causes = [event for event in lane.events if event.kind == "cause"]
    for how, count in Counter(str(event.data.get("how", "")) for event in causes).items():
        steps = sorted({e.step for e in causes if e.data.get("how") == how})
        if how in _REPLAYED:
            times = f", {count} times" if count > len(steps) else ""
            yield Deed(what=_REPLAYED[how], when=f"{span(steps)}{times}")
    told = dict.fromkeys(filter(None, map(_from_event, lane.events)))
    yield from told


def _from_event(event: Event) -> Deed | None:
    data, when = event.data, f"step {words.number(event.step)}"
    name, why = str(data.get("cls", "the optimizer")), str(data.get("why", ""))
    match event.kind:
        case "switched_to_fused":
            what = f"Switched {name} to its fused kernel"
            why = "it can leave a step out by itself; --no-fused keeps yours"
        case "switched_to_capturable":
            what = f"Moved the step counters of {name} to the device"
        case "replay":
            what = "Handed out a poisoned batch once more, to name the line"
            why = "the loop is one turn longer; --no-replay does without"
        case "backed_off":
            what = "Looked at optional things less often"
        case _:
            return None
    return Deed(what=what, when=when, why=why)


def span(steps: Sequence[int], count: int = 0) -> str:
    """Steps as a person lists them: all of a few, else how many and between which."""
    if not steps:
        return words.plural(count, "step")
    count = max(count, len(steps))
    if count == 1:
        return f"step {words.number(steps[0])}"
    if count <= _TOLD:
        return f"steps {words.listed([words.number(step) for step in steps])}"
    first, last = words.number(steps[0]), words.number(steps[-1])
    return f"{words.plural(count, 'step')} between {first} and {last}"

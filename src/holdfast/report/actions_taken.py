"""Actions taken on a run, one line each: the only things that holdfast changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..records import read
from ..records.nonfinite import Cause
from ..records.run import BackedOff
from ..records.steps import LossReplaced, SwitchedToCapturable, SwitchedToForeach, SwitchedToFused
from ..run import LaneData
from ..types import Event
from . import words
from .action_words import (
    KINDS,
    Rescue,
    rescue_of,
    shown,
)
from .columns import column
from .cost import MEASUREMENTS, WATCHERS
from .lanes import LaneSummary, skipped_rows
from .restarts import reasons_of

_REPLAYED = {
    "replay": "Reran a bad batch to find the line",
    "next": "Traced a later step to find the line",
    "look": "Inspected the values of a bad step",
}
_DROPPED = {
    MEASUREMENTS: "Reduced optional measurements",
    WATCHERS: "Looked for leaks and lost time less often",
}
_REPORTED = 6
# More events of one kind than this are summed up in one line.
_EACH = 4
_TOGETHER = {
    "rollback": "rolled back",
    "trial": "tried older weights",
    "level": "reset the loss baseline",
    "new_task": "forgot its baselines for a new task",
    "clipping": "switched automatic clipping on or off",
    "lowered_lr": "lowered the learning rate after a gradient norm far above its baseline",
    "quarantine": "quarantined samples",
    "unreadable": "put other samples in the place of unreadable ones",
    "unreadable again": "read samples again",
    "batch_split": "split batches that did not fit into memory",
    "scaler": "changed the loss scale",
    "checkpoint": "saved checkpoints",
    "checkpoint failed": "could not save checkpoints",
}


@dataclass(frozen=True, kw_only=True)
class ActionTaken:
    """One kind of action: what, when, and why or how."""

    what: str
    when: str
    why: str = ""


def actions_of(lanes: Sequence[LaneData], summaries: Sequence[LaneSummary]) -> list[ActionTaken]:
    """All actions taken, most important first; those that ranks took together once."""
    done: dict[ActionTaken, list[int]] = {}
    known: set[tuple[int, str, str]] = set()
    for lane, summary in zip(lanes, summaries, strict=True):
        taken = list(_lane(lane, summary))
        for action in taken:
            # A rank that was started again does the same on its way once more.
            if (lane.rank, action.what, action.why) not in known:
                done.setdefault(action, []).append(lane.rank)
        known |= {(lane.rank, action.what, action.why) for action in taken}
    if len({lane.rank for lane in lanes}) < 2:
        return list(done)
    return [
        replace(action, what=f"{action.what} ({words.ranks(who)})") for action, who in done.items()
    ]


def restart_actions(meta: Mapping[str, Any]) -> list[ActionTaken]:
    """The restarts of the script, which no lane has recorded."""
    return [
        ActionTaken(
            what=f"Started the script again{f', {len(at)} times' * (len(at) > 1)}",
            when=span(sorted(set(at))),
            why=why,
        )
        for at, why in reasons_of(meta)
    ]


def _lane(lane: LaneData, summary: LaneSummary) -> Iterable[ActionTaken]:
    yield from _steps(lane, summary)
    yield from _rescues(lane.events)
    causes = [(e.step, found.how) for e in lane.events if (found := Cause.of(e)) is not None]
    for how, count in Counter(how for _, how in causes).items():
        steps = sorted({step for step, found in causes if found == how})
        if how in _REPLAYED:
            times = f", {count} times" if count > len(steps) else ""
            yield ActionTaken(what=_REPLAYED[how], when=f"{span(steps)}{times}")
    found = dict.fromkeys(filter(None, map(_from_event, lane.events)))
    yield from found


def _steps(lane: LaneData, summary: LaneSummary) -> Iterable[ActionTaken]:
    """Actions taken on single steps, from their rows."""
    rows = lane.steps
    skipped = skipped_rows(lane)
    exploded = skipped & np.isin(column(rows, "outlier"), (1, 3))
    poisoned = summary.skipped - int(exploded.sum())
    if poisoned > 0 and "skipped" in (rows.dtype.names or ()):
        # A long run does not keep every row, but the counts are known.
        yield ActionTaken(
            what="Skipped steps with non-finite values",
            when=span(np.unique(rows["step"][skipped & ~exploded]).tolist(), poisoned),
            why="weights, optimizer state and buffers are as if the step had not happened",
        )
    if exploded.any():
        norm, usual = column(rows, "grad_norm")[exploded], column(rows, "norm_baseline")[exploded]
        most = int(np.argmax(np.nan_to_num(norm)))
        yield ActionTaken(
            what="Skipped steps with exploding gradients",
            when=span(np.unique(rows["step"][exploded]).tolist()),
            why=f"gradient norm up to {words.figure(norm[most])}, baseline "
            f"{words.figure(usual[most])}",
        )
    clip = column(rows, "clip")
    clipped = (clip < 1) & ~skipped
    if clipped.any():
        yield ActionTaken(
            what="Clipped gradients",
            when=span(np.unique(rows["step"][clipped]).tolist()),
            why=f"by a factor of {words.figure(float(clip[clipped].min()))} or more",
        )


def _rescues(events: Sequence[Event]) -> Iterable[ActionTaken]:
    """Recovery actions; of many events of one kind only the last."""
    for kind in KINDS:
        groups: dict[str, list[tuple[Event, Rescue]]] = {}
        for event in events:
            if event.kind == kind and (rescue := rescue_of(event)) is not None:
                groups.setdefault(f"{kind} {rescue.variant}".strip(), []).append((event, rescue))
        for name, group in groups.items():
            together = _TOGETHER.get(name, _TOGETHER.get(kind, ""))
            if len(group) <= _EACH or not together:
                yield from dict.fromkeys(_rescued(event, rescue) for event, rescue in group)
                continue
            last = group[-1][1]
            yield ActionTaken(
                what=f"{words.capital(together)}, {words.number(len(group))} times",
                when=span(sorted({event.step for event, _ in group})),
                why=f"the last time: {last.what}{f', {last.why}' if last.why else ''}",
            )


def _rescued(event: Event, rescue: Rescue) -> ActionTaken:
    code = f" [{rescue.code}]" if rescue.code else ""
    return ActionTaken(
        what=f"{words.capital(rescue.what)}{code}",
        when=f"step {words.number(event.step)}",
        why="; ".join(filter(None, [rescue.why, rescue.after])),
    )


def _from_event(event: Event) -> ActionTaken | None:
    when, why = f"step {words.number(event.step)}", ""
    match read(event.kind, event.data) if event.record is None else event.record:
        case SwitchedToFused(cls=cls):
            what = f"Switched {shown(cls) or 'the optimizer'} to its fused kernel"
            why = "it can skip a step by itself; --no-fused keeps yours"
        case SwitchedToForeach(cls=cls):
            name = shown(cls) or "the optimizer"
            what = f"Switched {name} to foreach (all tensors at once)"
            why = "it is faster and bitwise identical; --no-fused keeps yours"
        case SwitchedToCapturable(cls=cls, why=reason):
            what = f"Moved the step counters of {shown(cls) or 'the optimizer'} to the device"
            why = shown(reason)
        case _ if event.kind == "replay":
            what = "Fed a bad batch through the loop again to find the line"
            why = "the loop runs one iteration longer; --no-replay switches this off"
        case LossReplaced():
            what = "Let a non-finite loss read as the last finite one"
            when = f"from {when} on"
            why = "the script's averages stay numbers; the record keeps NaN; --keep-nan leaves it"
        case BackedOff(part=part, why=reason):
            if part not in _DROPPED:
                return None  # nothing was left to drop
            what, why = _DROPPED[part], shown(reason)
        case _:
            return None
    return ActionTaken(what=what, when=when, why=why)


def span(steps: Sequence[int], count: int = 0) -> str:
    """List a few steps; of many, the count and the range."""
    if not steps:
        return words.plural(count, "step")
    count = max(count, len(steps))
    if count == 1:
        return f"step {words.number(steps[0])}"
    if count <= _REPORTED:
        return f"steps {words.listed([words.number(step) for step in steps])}"
    first, last = words.number(steps[0]), words.number(steps[-1])
    return f"{words.plural(count, 'step')} between {first} and {last}"

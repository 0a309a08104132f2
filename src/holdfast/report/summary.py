"""A run in numbers: what happened, what was found, what it cost. Every report starts here.

summary = summarize(Run.latest("runs"))
summary.outcome, summary.steps, [finding.code for finding in summary.findings]
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..detectors import ALL, load_plugins
from ..detectors.judge import Judge
from ..run import LaneData, Run
from ..types import Event, Finding
from .actions_taken import ActionTaken, actions_of
from .joined_findings import FindingGroup, join_ranks
from .lanes import LaneSummary, read_lanes, summarize_lane

_HOW = {
    "fused": "skipped by its fused kernel",
    "hidden gradients": "skipped by hiding their gradients from it",
    "snapshot": "undone from a snapshot",
    "detect only": "only detected",
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended: one word for programs, one line for people."""

    word: str
    line: str


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Everything a report says about a run."""

    path: Path
    meta: Mapping[str, Any]
    ending: Ending
    lanes: tuple[LaneSummary, ...]
    finding_groups: tuple[FindingGroup, ...]
    steps: int
    skipped: int
    seconds: float
    first_loss: float
    last_loss: float
    guard_cost: float
    """Share of the run's time spent in holdfast, an estimate; NaN when unknown."""
    exception: Mapping[str, Any] | None = None
    not_covered: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """What holdfast changed about the script's optimizers."""
    actions_taken: tuple[ActionTaken, ...] = ()
    """All actions taken on the run."""
    rollbacks: int = 0
    """Number of rollbacks that were kept."""
    policy: tuple[str, ...] = ()
    """The policy: which finding gets which action, one line per rule."""
    errors: tuple[str, ...] = ()
    """Parts of holdfast that failed and were switched off."""
    dropped: int = 0
    """Records lost because the ring or the device readback was full."""
    files: tuple[int, int] = (0, 0)
    """How many files the run folder holds, and their bytes."""
    page: str = ""
    """Path of the HTML report; empty when there is none yet."""
    unreadable: tuple[str, ...] = ()
    """Damaged parts of the recording, not included here; see ``read_record``."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def outcome(self) -> str:
        """One word: finished, failed, killed, interrupted, unfinished."""
        return self.ending.word

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, worst and most causal first, the same one on several ranks once."""
        return tuple(f for group in self.finding_groups for f in group.findings)


def summarize(run: Run) -> RunSummary:
    """Read a run folder and sum it up; works during the run and after any kind of death."""
    return summarize_lanes(run, read_lanes(run))


def summarize_lanes(
    run: Run, data: Sequence[LaneData], unreadable: tuple[str, ...] = ()
) -> RunSummary:
    """Sum up what was read of a run."""
    lanes = tuple(summarize_lane(lane) for lane in data)
    events = [event for lane in data for event in lane.events]
    finished = run.meta.get("status") == "finished"
    found = [(lane.lane, finding) for lane in data for finding in _findings(lane, finished)]
    exception = next((dict(e.data) for e in events if e.kind == "exception"), None)
    trained = _in_order(data, lanes)
    lead = [seen for _, seen in trained if seen.rank == lanes[0].rank]
    weights = [lane.seconds for lane in lanes if not math.isnan(lane.guard_cost)]
    costs = [lane.guard_cost for lane in lanes if not math.isnan(lane.guard_cost)]
    return RunSummary(
        path=run.path,
        meta=dict(run.meta),
        ending=_ending(run.meta, exception, events),
        lanes=lanes,
        finding_groups=join_ranks(found),
        steps=_steps_done(trained),
        skipped=_over_ranks(lanes, "skipped"),
        seconds=max((lane.seconds for lane in lanes), default=0.0),
        first_loss=lead[0].first_loss if lead else math.nan,
        last_loss=lead[-1].last_loss if lead else math.nan,
        guard_cost=float(np.average(costs, weights=weights)) if sum(weights) else math.nan,
        exception=exception,
        not_covered=_notes(events, "not_covered", "what", "why"),
        changes=_changes(events),
        actions_taken=tuple(actions_of(data, lanes)),
        rollbacks=_over_ranks(lanes, "rollbacks"),
        policy=_policy(events),
        errors=_notes(events, "holdfast_error", "where", "error"),
        dropped=sum(lane.dropped for lane in lanes),
        files=_files(run),
        page=str(run.page_path) if run.page_path.is_file() else "",
        unreadable=unreadable,
        facts=_facts(run.meta, events),
    )


def _findings(lane: LaneData, finished: bool) -> Iterable[Finding]:
    """Recorded findings; a run without a final record is judged again from its rows.

    The recorded finding stays where it counts more: rows of long runs are thinned.
    """
    if finished:
        return lane.findings
    judge = Judge((*ALL, *load_plugins(os.environ, ALL).detectors), rank=lane.rank)
    judge.feed(lane.steps, lane.events, lane.batches)
    judge.close()
    best = {finding.key: finding for finding in lane.findings}
    for finding in judge.findings:
        known = best.get(finding.key)
        if known is None or finding.evidence["count"] > known.evidence.get("count", 1):
            best[finding.key] = finding
    return best.values()


def _in_order(
    data: Sequence[LaneData], lanes: Sequence[LaneSummary]
) -> list[tuple[LaneData, LaneSummary]]:
    """Lanes that have steps, the earliest first: a resumed run goes on in a lane of its own."""
    trained = [both for both in zip(data, lanes, strict=True) if len(both[0].steps)]
    return sorted(trained, key=lambda both: float(both[0].steps["time"][0]))


def _steps_done(trained: Iterable[tuple[LaneData, LaneSummary]]) -> int:
    """Restarts of a rank add up; one that resumed goes on from the step of its checkpoint.

    What was done after that checkpoint is done again and counts once, so that the number is the
    one the training itself ends with.
    """
    done: dict[int, int] = {}
    for lane, seen in trained:
        resumed = any(event.kind == "resume" for event in lane.events)
        before = seen.first_step if resumed else done.get(seen.rank, 0)
        done[seen.rank] = before + seen.steps
    return max(done.values(), default=0)


def _over_ranks(lanes: Sequence[LaneSummary], name: str) -> int:
    """Restarts of a rank add up; ranks do the same steps together."""
    totals: dict[int, int] = {}
    for lane in lanes:
        totals[lane.rank] = totals.get(lane.rank, 0) + getattr(lane, name)
    return max(totals.values(), default=0)


def _policy(events: Iterable[Event]) -> tuple[str, ...]:
    recorded = next((event.data.get("rules") for event in events if event.kind == "policy"), None)
    rules = cast("list[Any]", recorded) if isinstance(recorded, list) else []
    return tuple(str(rule) for rule in rules)


def _ending(
    meta: Mapping[str, Any], exception: Mapping[str, Any] | None, events: Sequence[Event]
) -> Ending:
    code = meta.get("exit_code")
    stop = next((event.data for event in events if event.kind == "stop"), None)
    if stop is not None and meta.get("status") == "finished":
        why = " ".join(str(stop.get("why") or stop.get("code", "")).split())
        return Ending(word="stopped", line=f"stopped by holdfast, {why}")
    if meta.get("status") != "finished":
        return Ending(
            word="unfinished",
            line="not finished: it is still running, or holdfast itself was killed",
        )
    if code is None or code == 0:
        return Ending(word="finished", line="finished")
    if not isinstance(code, int):
        return Ending(word="failed", line=f"ended with {code!r}")
    number = -code if code < 0 else code - 128
    if code in (-signal.SIGINT, 130) or (exception or {}).get("type") == "KeyboardInterrupt":
        return Ending(word="interrupted", line="interrupted from the keyboard")
    if code < 0 or 128 < code < 160:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = ", perhaps out of host memory" if name == "SIGKILL" else ""
        return Ending(word="killed", line=f"killed by {name}{hint}")
    if exception is None:
        return Ending(word="failed", line=f"failed with exit code {code}")
    lines = str(exception.get("message", "")).strip().splitlines()
    what = f"{exception.get('type', 'an exception')}{': ' + lines[0][:200] if lines else ''}"
    file, line = exception.get("file"), exception.get("line")
    where = f" at {file}:{line}" if file else ""
    return Ending(word="failed", line=f"crashed with {what}{where}")


def _notes(events: Iterable[Event], kind: str, what: str, why: str) -> tuple[str, ...]:
    notes = (f"{e.data.get(what, '')}: {e.data.get(why, '')}" for e in events if e.kind == kind)
    return tuple(dict.fromkeys(notes))


def _changes(events: Iterable[Event]) -> tuple[str, ...]:
    changes: dict[str, None] = {}
    for event in events:
        name = event.data.get("cls", "the optimizer")
        if event.kind == "switched_to_fused":
            changes[f"{name} runs as its fused kernel, which can skip a step by itself"] = None
        elif event.kind == "optimizer" and event.data.get("how"):
            how = str(event.data["how"])
            handled = _HOW.get(how, how)
            # Where nothing can be done the reason matters; elsewhere it only fills the line.
            why = f": {event.data['why']}" if how == "detect only" and "why" in event.data else ""
            changes[f"bad steps of {name} are {handled}{why}"] = None
    return tuple(changes)


def _norms(events: Iterable[Event]) -> str:
    """The gradient norms that a trainer summed up last: of the run, or of its newest epoch."""
    told = [event.data for event in events if event.kind == "gradient_norms" and not event.rank]
    newest = told[-1] if told else dict[str, Any]()
    over = f" in epoch {newest['epoch'] + 1}" if isinstance(newest.get("epoch"), int) else ""
    parts = [f"{newest.get('line', '')}{over}", str(newest.get("advice", ""))]
    return "; ".join(filter(None, parts))


def _files(run: Run) -> tuple[int, int]:
    """What was recorded, without the page made of it; files of a live run may vanish meanwhile."""
    sizes: list[int] = []
    with contextlib.suppress(OSError):
        entries = [entry for entry in os.scandir(run.path) if entry.name != run.page_path.name]
        sizes = [entry.stat().st_size for entry in entries if entry.is_file()]
    return len(sizes), sum(sizes)


def _facts(meta: Mapping[str, Any], events: Sequence[Event]) -> dict[str, str]:
    starts: list[Mapping[str, Any]] = [event.data for event in events if event.kind == "start"]
    start = starts[0] if starts else dict[str, Any]()
    command = meta.get("command")
    words = cast("list[Any]", command) if isinstance(command, list) else []
    facts = {
        "command": " ".join(map(str, words)),
        "started": str(meta.get("created", ""))[:19].replace("T", " "),
        "holdfast": str(meta.get("holdfast", "")),
        "python": str(start.get("python", meta.get("python", ""))),
        "torch": str(start.get("torch", "")),
        "device": str(start.get("device", "")),
        "world": str(start.get("world", "")),
        "gradients": _norms(events),
    }
    return {name: value for name, value in facts.items() if value}

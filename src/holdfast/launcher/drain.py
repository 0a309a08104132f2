"""Drain: moves rows from the rings into the run folder, judges them, prints live lines.

The parent of ``holdfast run`` ticks one drain for all lanes it owns; ``holdfast.watch`` ticks
one from a thread. Training never waits for either.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..config import Settings
from ..detectors import Detector
from ..detectors.judge import Judge, Key
from ..detectors.options import configured
from ..errors import HoldfastError
from ..policy import Policy
from ..records import Kind
from ..records.base import event_from
from ..records.crash import NoProgress, SignalReceived
from ..records.resuming import Resumed
from ..records.run import Dropped
from ..report.live import Live, start_line
from ..run import (
    LaneWriter,
    Ring,
    Run,
    encode,
    rank_of,
)
from ..run.durable import write_text
from ..types import Event, Finding, Severity
from .child_memory import ChildEnd, ChildMemory
from .end_times import EndTimes
from .heartbeat import BEFORE, Heartbeat, LaneNews, RingProgress, Starting
from .rank_watch import RankWatch


def _no_pause() -> None:
    """In a process of its own nobody waits."""


@dataclass(slots=True)
class _Lane:
    name: str
    ring: Ring
    writer: LaneWriter
    judge: Judge
    dropped: int = 0
    resumed: int = 0
    """The step that it goes on from."""
    written: dict[tuple[Key, str], int] = field(default_factory=dict[tuple[Key, str], int])
    acted_on: set[Key] = field(default_factory=set[Key])
    orders: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """Actions not yet requested from the training."""
    died: bool = False
    """Its process is gone without a word, which is recorded."""


class Drain:
    """Writes the lanes of one run that belong to one owner."""

    def __init__(
        self,
        run: Run,
        owner: str,
        settings: Settings,
        detectors: Iterable[type[Detector]],
        say: Callable[[str], None],
        heartbeat: Heartbeat | None = None,
        *,
        summed_up: bool = False,
    ) -> None:
        self.run = run
        self.errors: list[str] = []
        self.hung: Finding | None = None
        """The finding of a run that hangs, as long as it does."""
        self.abandoned: Finding | None = None
        """The finding of ranks that wait for one that is gone or through: they would for ever."""
        self.child = 0
        """The script, where it is a child of this process."""
        self.pause: Callable[[], None] = _no_pause
        """Called between two pieces of work."""
        self._heartbeat = heartbeat
        self._owner = owner
        self._policy = Policy.of(settings)
        chosen = [d for d in detectors if settings.detectors.wants(d.code)]
        self._detectors = configured(chosen, settings.detectors.options)
        self._live = Live(
            say,
            quiet=settings.run.quiet,
            verbose=settings.run.verbose,
            health=settings.run.health,
            summed_up=summed_up,
            start=start_line(
                str(run.meta.get("script", "")),
                str(run.path),
                acts=any(rule.acts for rule in self._policy.rules),
            ),
        )
        self._memory = ChildMemory()
        self._ranks = RankWatch(run, self._detectors)
        self._ends = EndTimes()
        self._lanes: dict[str, _Lane] = {}
        self._done: set[str] = set()
        self._foreign: dict[str, Ring] = {}

    def tick(self) -> int:
        """Drain every lane; returns the number of rows written."""
        rows = 0
        self._find_lanes()
        if self._heartbeat is not None:
            self._check_progress(self._heartbeat)
        for lane in list(self._lanes.values()):
            self.pause()
            try:
                rows += self._drain(lane)
            except (HoldfastError, OSError, ValueError) as error:
                self._give_up(lane, error)
        self.pause()
        self._find_dead()
        self._read_memory()
        self._compare_ranks()
        return rows

    def _find_dead(self) -> None:
        """Which rank is gone first matters: all others end because of it."""
        for lane in list(self._lanes.values()) if self._heartbeat is not None else ():
            gone = not lane.died and not lane.ring.closed and not _alive(lane.ring)
            if gone and lane.ring.pid != self.child:  # of the child more is known at its end
                self._drain(lane)
                self._tell_death(lane, None)

    def _tell_death(self, lane: _Lane, ended: ChildEnd | None) -> None:
        lane.died = True
        pid = lane.ring.pid
        self._note(lane, self._memory.last_words(pid, ended, self._ends.of(pid)))

    def _compare_ranks(self, *, now: bool = False) -> None:
        """Compare the ranks, if the first one that is left is ours and there are others."""
        if self._heartbeat is None or not (now or self._ranks.due):
            return
        own = {rank_of(name) for name in self._lanes}
        others = {rank_of(name) for name, ring in self._foreign.items() if _alive(ring)}
        known = {rank_of(name) for name in (*self._lanes, *self._foreign)}
        if len(known) < 2 or not own or min(own) > min(others, default=min(own)):
            return
        self._live.show(self._ranks.look(now=now))
        found = {finding.code: finding for finding in self._ranks.findings}
        hang = found.get("RNK007")
        if hang is not None and hang.severity is Severity.ERROR and hang.evidence.get("deadlock"):
            through = "RNK005" in found or hang.evidence.get("gone")
            self.abandoned = hang if through else self.abandoned

    def _check_progress(self, heartbeat: Heartbeat) -> None:
        """Whether the run goes on; before new rows are judged, to which it belongs."""
        # One that has closed its ring may have gone on since the last tick; a killed one has not.
        lanes = {n: o for n, o in self._lanes.items() if o.ring.closed or _alive(o.ring)}
        rings: dict[str, RingProgress] = {name: lane.ring for name, lane in lanes.items()}
        stepped = {name: lane.judge.newest_step >= 0 for name, lane in lanes.items()}
        if not self._lanes and self.child:
            rings[BEFORE], stepped[BEFORE] = Starting(self.child), False
        try:
            found = heartbeat.look(rings, stepped, self._foreign)
        except (OSError, ValueError) as error:  # a system that tells it in another way
            self.errors.append(f"heartbeat: {error}")
            self._heartbeat = None
            return
        for seen in found:
            if seen.lane in lanes:
                self._tell_silence(lanes[seen.lane], seen)
            else:
                self._tell_start(seen)
        if any(isinstance(seen.record, NoProgress) for seen in found):
            self._compare_ranks(now=True)

    def _tell_start(self, seen: LaneNews) -> None:
        """The same of a script that could not open its lane: it is said, and not recorded."""
        if not isinstance(seen.record, NoProgress) or not seen.record.processes:
            return  # without torch nothing is known about it
        judge = Judge(self._detectors)
        judge.feed(None, [_event(seen.record)])
        found = judge.judge_waiting()
        self._live.show(found)
        self.hung = next((f for f in found if f.severity is Severity.ERROR), self.hung)

    def _tell_silence(self, lane: _Lane, seen: LaneNews) -> None:
        record = seen.record
        if seen.stacks:
            with contextlib.suppress(OSError):
                write_text(self.run.stacks_path(lane.name), f"{seen.stacks}\n")
                record = record.replace(stacks=self.run.stacks_path(lane.name).name)
        event = self._note(lane, record)
        if not isinstance(record, NoProgress):
            self._live.show((), [event] if self.hung is not None else [])
            self.hung = self.abandoned = None
            return
        found = lane.judge.judge_waiting()
        lane.writer.write_findings(found)
        self._live.show(found)
        self.hung = next((f for f in found if f.severity is Severity.ERROR), self.hung)

    def _read_memory(self) -> None:
        try:
            read = self._memory.look(lane.ring.pid for lane in self._lanes.values())
        except (OSError, ValueError):  # a system that tells it in another way
            return
        for lane in list(self._lanes.values()) if read else ():
            self._note(lane, read[lane.ring.pid])

    def saw_signal(self, name: str) -> None:
        """Somebody asked the script to end: a script may handle that and end as if it were done."""
        # A full disk must not keep the signal from the script.
        with contextlib.suppress(HoldfastError, OSError, ValueError):
            self.tick()
            for lane in list(self._lanes.values()):
                self._note(lane, SignalReceived(name=name))

    @property
    def findings(self) -> list[Finding]:
        """All findings of the lanes still open, worst first within a lane."""
        return [f for lane in self._lanes.values() for f in lane.judge.findings]

    def close(self, ended: ChildEnd | None = None) -> None:
        """End of training: drain completely and release the rings.

        ``ended`` says how the script ended, where it was a child of this process.
        """
        while self.tick():
            pass
        for lane in list(self._lanes.values()):
            if not lane.died and not lane.ring.closed and not _alive(lane.ring):
                self._tell_death(lane, ended if ended and ended.pid == lane.ring.pid else None)
            self._live.show(lane.judge.close())
            self._tell_errors(lane)
            lane.writer.write_findings(lane.judge.findings)
            if lane.writer.close():
                lane.ring.detach()
                self.run.remove_ring(lane.name)
            elif lane.writer.last_error:
                self.errors.append(f"{lane.name}: {lane.writer.last_error}")
        self._lanes.clear()
        for ring in self._foreign.values():
            ring.detach()
        self._foreign.clear()
        self.run.remove_dead_claims()

    def _find_lanes(self) -> None:
        for name in self.run.lanes():
            if name in self._lanes or name in self._done or name in self._foreign:
                continue
            path = self.run.ring_path(name)
            try:
                if not path.exists() or not path.stat().st_size:
                    continue
                ring = Ring.attach(path)
                if ring.owner != self._owner:
                    # Kept open: a rank here may wait for that one, which must be seen to go on.
                    self._foreign[name] = ring
                    continue
                writer = LaneWriter(self.run, name, ring=ring)
            except (HoldfastError, OSError) as error:
                self._done.add(name)
                self.errors.append(f"{name}: {error}")
                continue
            judge = Judge(self._detectors, rank_of(name), lambda: self.pause())
            self._lanes[name] = _Lane(name, ring, writer, judge)
            if self._heartbeat is not None:  # else it is this process
                self._ends.watch(ring.pid)

    def _drain(self, lane: _Lane) -> int:
        taken = lane.writer.drain()
        self.pause()
        if lane.ring.dropped > lane.dropped:
            lane.dropped = lane.ring.dropped
            lane.writer.write_events(
                [event_from(0, Dropped(records=lane.dropped), lane.judge.rank)]
            )
        resumed = [event.step for event in taken.events if event.kind == Resumed.kind]
        lane.resumed = max([lane.resumed, *resumed])
        changed = lane.judge.feed(taken.rows, taken.events, taken.batches)
        self._order(lane, changed)
        self.pause()
        lane.writer.write_findings([f for f in changed if self._worth_writing(lane, f)])
        self._tell_errors(lane)
        self._live.show_health(lane.name, lane.judge.rank, taken.rows)
        self._live.show(changed, taken.events)
        return 0 if taken.rows is None else len(taken.rows)

    def _order(self, lane: _Lane, findings: Iterable[Finding]) -> None:
        """Request the actions that the policy has for new findings."""
        newest = int(lane.judge.newest_step)
        for finding in findings:
            if finding.key not in lane.acted_on:
                lane.acted_on.add(finding.key)
                decision = self._policy.order(finding.code, newest)
                actions = ["stop"] if decision.stop else list(decision.do)
                about = {"code": finding.code, "found": finding.step, "why": decision.why}
                lane.orders += [{"action": action, **about} for action in actions]
        if lane.orders and lane.ring.post(encode({"orders": lane.orders})):
            lane.orders = []

    @staticmethod
    def _note(lane: _Lane, record: Kind) -> Event:
        """Write an Event of our own, about the training: it belongs to the next step."""
        step = max(int(lane.judge.newest_step) + 1, lane.resumed)
        event = _event(record, lane.judge.rank, step)
        lane.writer.write_events([event])
        lane.judge.feed(None, [event])
        return event

    @staticmethod
    def _tell_errors(lane: _Lane) -> None:
        if lane.judge.errors:
            lane.writer.write_events(lane.judge.errors)
            lane.judge.errors.clear()

    @staticmethod
    def _worth_writing(lane: _Lane, finding: Finding) -> bool:
        """Whether a finding is new, newly explained, or twice as frequent; keeps the file small."""
        key = finding.key, str(finding.evidence.get("headline", ""))
        count = int(finding.evidence.get("count", 1))
        if count < 2 * lane.written.get(key, 0):
            return False
        lane.written[key] = count
        return True

    def _give_up(self, lane: _Lane, error: Exception) -> None:
        """Close a lane that cannot be written; the others go on."""
        self.errors.append(f"{lane.name}: {error}")
        self._done.add(lane.name)
        del self._lanes[lane.name]


def _event(record: Kind, rank: int = 0, step: int = 0) -> Event:
    return Event(
        time=time.time(),
        rank=rank,
        step=step,
        kind=record.kind,
        data=record.to_dict(),
        record=record,
    )


def _alive(ring: Ring) -> bool:
    mark = ring.process
    return mark is not None and mark.is_alive() is not False

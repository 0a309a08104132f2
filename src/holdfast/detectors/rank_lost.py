"""RNK008: a rank was killed, and the others with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..records.crash import Died, RaisedException
from ..records.recovery import LastStateResult, RunStopped
from ..types import Finding, Severity
from ._ranks import RankDetector, RankLane, named
from .peers import peer_is_gone, peer_is_late


class RankLost(RankDetector):
    """A rank was gone without a word: killed first, and all others ended because of it.

    What it detects:
        A rank whose process ended without an exception and without a final record, while the others
        lost their connection to it, hang, or were ended by their launcher. Where several are gone
        without a word, the one that was gone first, if that can be reported.

    Why it matters:
        The errors that are printed are those of the ranks that survived a little longer. The cause
        is in the one that printed nothing.

    Evidence:
        ``ranks`` compared and ``lost``: those that were gone first; ``signal`` that ended it, where
        its parent saw it; ``explains``: findings of other ranks that follow from it.

    Usual causes:
        - The kernel killed it for lack of host memory (then MEM008 is beside it).
        - A node failed or was taken away.
        - ``kill -9``, or a crash in native code (SIGSEGV).

    What to do:
        1. Look at the memory of that rank in the report, and at ``dmesg`` of its machine.
        2. Go on from the last checkpoint; ``torchrun --max-restarts`` does it by itself.

    False alarms:
        A script that ends a rank by ``os._exit``. A run that was asked to end (Ctrl-C, SIGTERM) is
        not judged.

    Cost:
        None: the supervisor sees whether a process is there.

    Reproduce:
        ``holdfast run -m holdfast.faults.rank_lost`` names the rank that is killed in
        ``python -m holdfast.faults.rank_lost``.
    """

    code = "RNK008"
    name = "rank_lost"
    severity = Severity.ERROR
    needs = ("loss",)
    since = "0.1"
    within = 20

    @dataclass(frozen=True, kw_only=True)
    class Options(RankDetector.Options):
        """A guess: a launcher needs longer to see the first end and to send a signal."""

        gap: float = 0.005
        """Seconds between two ends from which on one was first."""

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """The rank that was gone first."""
        gone = [lane for lane in lanes if lane.events_of("died") and not lane.events_of("end")]
        if not gone or any(lane.events_of(RunStopped.kind) for lane in lanes):
            return
        # Somebody asked the run to end; a launcher asks only after it has lost a rank.
        asked = min((e.time for lane in lanes for e in lane.events_of("signal")), default=math.inf)
        # And who ends a run that hangs ends all ranks.
        last = [e for lane in lanes for e in lane.events_of("no_progress", "progress_again")[-1:]]
        hangs = (event.time for event in last if event.kind == "no_progress")
        if min(map(_ended, gone)) > min(asked, *hangs, math.inf):
            return
        # One that still saved its state or raised was alive when it lost the other.
        lost = [lane for lane in gone if not lane.events_of("exception", LastStateResult.kind)]
        if len(lost) > 1:
            # A launcher may end a rank before it has raised. Where all are gone and none was the
            # first, nobody is to blame.
            lost = self._first(lost) or (lost if len(lost) < len(lanes) else [])
        others = [lane for lane in lanes if lane not in lost]
        raised = (event for x in others for event in x.events_of("exception"))
        if any(peer_is_late(RaisedException.of(event)) for event in raised):
            return  # it did not come and was not gone: they waited until their time limit
        if not lost or not others or any(map(_own_error, others)):
            return
        first = lost[0]
        signal = _signal(first)
        # Without a signal it may have left by itself.
        gone = f"killed by {signal}" if signal else "gone"
        left = "" if signal else ", or os._exit and the like in the script"
        names = [lane.rank for lane in lost]
        yield self.about(
            lanes,
            step=first.last_step + 1,
            rank=first.rank,
            what=f"{named(names)} {'was' if len(names) == 1 else 'were'} {gone} without a word "
            f"after {first.last_step + 1:,} steps; {named([o.rank for o in others])} ended because "
            "of it",
            advice="look at the memory of that rank and at dmesg of its machine (out of memory, a "
            f"lost node, kill -9{left}); torchrun --max-restarts starts all ranks again",
            confidence=0.9,
            evidence={
                "lost": names,
                "signal": signal,
                "explains": [[code, o.rank] for o in others for code in ("RUN001", "RUN004")],
            },
        )

    def _first(self, lost: Sequence[RankLane]) -> list[RankLane]:
        """Those that were gone before the others; none where that cannot be reported."""
        killed = [lane for lane in lost if _signal(lane) == "SIGKILL"]
        if 0 < len(killed) < len(lost):
            return killed  # others were ended by their launcher
        times = sorted((_ended(lane), lane.rank) for lane in lost)
        if times[1][0] - times[0][0] < self.options.gap:
            return []
        return [lane for lane in lost if lane.rank == times[0][1]]


def _ended(lane: RankLane) -> float:
    """When a process was gone: as its supervisor saw it, or wrote it down."""
    event = lane.events_of("died")[0]
    died = Died.of(event)
    return event.time if died is None or died.at is None else died.at


def _signal(lane: RankLane) -> str:
    """The signal that ended a process; empty where nobody saw it."""
    died = Died.of(lane.events_of("died")[-1])
    return "" if died is None else died.signal


def _own_error(lane: RankLane) -> bool:
    """Whether a rank raised something that is no consequence."""
    raised = map(RaisedException.of, lane.events_of("exception"))
    return any(not peer_is_gone(each) for each in raised)

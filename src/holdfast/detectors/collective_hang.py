"""RNK007: ranks wait in a collective that another rank does not come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..records.crash import NoProgress, RaisedException
from ..types import Finding, Severity, place_words
from ._ranks import RankDetector, RankLane, named, number
from .peers import peer_is_late

_SILENT = "no_progress"
_COLLECTIVES = ("distributed_c10d.py", "/torch/distributed/", "torch/nn/parallel/distributed.py")
_BACKWARD = "_engine_run_backward"
# Cores in use from which on a rank works and does not wait.
_COMPUTES = 0.5


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a rank stands."""

    lane: RankLane
    data: NoProgress | None
    """What was seen of it; None where it had ended."""
    waits: bool
    gone: bool
    step: int = 0
    """The step that it was at."""

    @property
    def where(self) -> str:
        """``train.py:31``; empty where it is not known."""
        if self.data is None or not self.data.file:
            return ""
        return place_words(self.data.file.rpartition("/")[2], self.data.line)

    @property
    def works(self) -> bool:
        """Whether it moves or computes."""
        return self.data is not None and (self.data.moves or self.data.cpu >= _COMPUTES)

    @property
    def reported(self) -> str:
        if self.gone:
            return "has ended"
        verb = "is at work at" if self.works and not self.waits else "stands at"
        return f"{verb} {self.where}" if self.where else "does not answer"


class CollectiveHang(RankDetector):
    """The run hangs: some ranks wait in a collective, and the rank they wait for is elsewhere.

    What it detects:
        Ranks of a run that hangs (RUN004), told together: which of them wait in a collective (an
        all-reduce of backward, a barrier, a broadcast) and at which line, and which rank is to
        blame: the one that stands elsewhere, or has ended.

    Why it matters:
        Every rank shows the same silence. The stack that matters is the one of the rank that does
        not wait, and there are as many stacks as ranks.

    Evidence:
        ``ranks`` compared; ``blamed``: those that are waited for; ``waiting``: those in a
        collective; ``places``: file and line by rank; ``gone``: ranks that have ended, for which
        the others wait for ever; ``deadlock``: all ranks wait, in different collectives or for one
        that is gone; ``seconds`` without progress; ``explains``: findings that follow from it;
        ``cause``: function and lines around.

    Usual causes:
        - ``if rank == 0`` around a collective: saving or evaluating a sharded model, a barrier, a
          metric that is reduced.
        - A rank with fewer batches, which is through (RNK005).
        - A loader, a lock or a download that does not answer on one rank.
        - A rank that was killed or raised, whose launcher does not end the others.

    What to do:
        1. Look at the line of the blamed rank, then at ``stacks.rN.txt`` of each rank.
        2. Call collectives on all ranks, in the same order.
        3. A shorter timeout: ``init_process_group(timeout=timedelta(minutes=5))``.

    False alarms:
        As RUN004: long waits on purpose. A rank on a GPU waits for its device, not inside of a
        collective: there the blame is a guess.

    Cost:
        None: stacks of a run that hangs are taken anyway, and compared beside it.

    Reproduce:
        ``holdfast run -m holdfast.faults.collective_hang`` with ``--hang-after 6`` names the rank
        and the line at which ``python -m holdfast.faults.collective_hang`` stands still.
    """

    code = "RNK007"
    name = "collective_hang"
    severity = Severity.ERROR
    other_severities = ((Severity.WARNING, "where it went on by itself"),)
    needs = ("loss",)
    since = "0.1"
    within = 20

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """Who waits for whom, where a run hangs."""
        hung = [lane for lane in lanes if _reported(lane) is not None]
        if not hung:
            yield from self._given_up(lanes)
            return
        since = max(event.time for lane in hung for event in lane.events_of(_SILENT)[-1:])
        # A rank that went on meanwhile is not part of it.
        places = [place for lane in lanes if (place := _place(lane, since)) is not None]
        waiting = [place for place in places if place.waits and not place.gone]
        if len(places) < 2 or not waiting:
            return
        blamed = [place for place in places if not place.waits]
        if not blamed and len({place.where for place in waiting}) > 1:
            usual, _ = Counter(place.where for place in waiting).most_common(1)[0]
            # Of two the one that has left the loop: it has come further.
            blamed = [p for p in waiting if p.where != usual] or waiting[1:]
            waiting = [place for place in waiting if place not in blamed]
        yield self._finding(lanes, places, blamed, waiting)

    def _given_up(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """Ranks whose collective ran into its time limit, before anybody looked where all stand."""
        limits = {
            lane.rank: (event, raised)
            for lane in lanes
            for event in lane.events_of("exception")
            if (raised := RaisedException.of(event)) is not None and peer_is_late(raised)
        }
        # One that was gone before is another fault, and so is one that raised.
        until = min((event.time for event, _ in limits.values()), default=0.0)
        ends = ("end", "died", "exception")
        late = [x for x in lanes if not any(e.time < until for e in x.events_of(*ends))]
        late = [lane for lane in late if lane.rank not in limits]
        if not limits or not late:
            return
        (_, raised), ranks = next(iter(limits.values())), list(limits)
        yield self.about(
            lanes,
            step=late[0].last_step + 1,
            rank=late[0].rank,
            what=f"{named([x.rank for x in late])} did not come to the collective in which "
            f"{named(ranks)} waited until its time limit, and stood still after "
            f"{late[0].last_step + 1:,} steps",
            advice="see where it stands: holdfast run --hang-after SECONDS, with fewer of them "
            "than the time limit of the process group, shows the line of every rank",
            confidence=0.8,
            file=raised.file,
            line=raised.line,
            evidence={
                "blamed": [x.rank for x in late],
                "waiting": ranks,
                "explains": [["RUN001", rank] for rank in ranks],
            },
        )

    def _finding(
        self,
        lanes: Sequence[RankLane],
        places: Sequence[_Place],
        blamed: Sequence[_Place],
        waiting: Sequence[_Place],
    ) -> Finding:
        reported = [finding for lane in lanes if (finding := _reported(lane)) is not None]
        over = max(number(finding.evidence, "went_on") for finding in reported)
        seconds = max(over, *(place.data.seconds for place in places if place.data is not None))
        where = " and ".join(dict.fromkeys(place.where for place in waiting))
        ranks = named([place.lane.rank for place in waiting])
        wait = "waits" if len(waiting) == 1 else "wait"
        first = blamed[0] if blamed else waiting[0]
        if not blamed:
            what = f"all ranks wait in the same collective at {where}"
            seen = "NCCL_DEBUG=INFO" if _on_devices(lanes) else "GLOO_SOCKET_IFNAME"
            advice = (
                "see whether one of them has called another collective before, or one more of "
                f"this; if not, look at the network between the ranks ({seen})"
            )
        else:
            who = named([place.lane.rank for place in blamed])
            at = " in another collective" if first.waits else ""
            what = f"{who} {first.reported}{at}, while {ranks} {wait} in a collective at {where}"
            advice = _advice(first)
        files = [f"stacks.{place.lane.name}.txt" for place in places if not place.gone]
        seen = {} if first.data is None else first.data.to_dict()
        return self.about(
            [place.lane for place in places],
            step=max(place.step for place in places),
            rank=first.lane.rank,
            what=f"no step for {seconds:.3g} s: {what}{'; then it went on' if over else ''}",
            severity=max(finding.severity for finding in reported),
            advice=f"{advice}; all threads are in {', '.join(files[:4])}",
            confidence=0.9 if blamed and not first.waits else 0.6,
            file=seen.get("file", ""),
            line=seen.get("line", 0),
            evidence={
                "blamed": [place.lane.rank for place in blamed],
                "waiting": [place.lane.rank for place in waiting],
                "places": [f"rank {place.lane.rank}: {place.reported}" for place in places],
                "gone": [place.lane.rank for place in places if place.gone],
                "deadlock": bool(blamed) and all(p.waits or p.gone for p in [*blamed, *waiting]),
                "seconds": seconds,
                "explains": [["RUN004", lane.rank] for lane in lanes],
                "cause": {n: seen[n] for n in ("function", "excerpt") if n in seen},
            },
        )


def _on_devices(lanes: Sequence[RankLane]) -> bool:
    return any("nccl" in lane.facts.backend for lane in lanes)


def _reported(lane: RankLane) -> Finding | None:
    """What RUN004 says about a rank alone."""
    return next((finding for finding in lane.findings if finding.code == "RUN004"), None)


def _place(lane: RankLane, since: float) -> _Place | None:
    """Where a rank stood when the run was found to hang; None where it went on."""
    silent = [(event, seen) for event in lane.events_of(_SILENT) if (seen := NoProgress.of(event))]
    gone = any(e.time <= since for e in lane.events_of("end", "died"))
    gone = gone or bool(silent and silent[-1][1].gone)
    if not silent:
        return _Place(lane=lane, data=None, waits=False, gone=True) if gone else None
    event, data = silent[-1]
    waits = not gone and _waits(lane, data)
    return _Place(lane=lane, data=data, waits=waits, gone=gone, step=event.step)


def _waits(lane: RankLane, data: NoProgress) -> bool:
    """Whether a rank is in a collective: one of its own, or the reduction of its backward."""
    frames = data.frames or ()
    if any(part in file for file, *_ in frames for part in _COLLECTIVES):
        return True
    reduces = bool(lane.facts.wrapper) and data.cpu < 0.5
    return reduces and any(_BACKWARD in function for *_, function in frames)


def _advice(place: _Place) -> str:
    if place.gone:
        return (
            "see why this rank ended before the others: fewer batches, an exit under a condition, "
            "a kill"
        )
    if place.waits:
        return "call the same collectives on all ranks, in the same order: look for if rank == 0"
    if place.works:
        return (
            "it computes, and the others wait for it: let all ranks do this work, or only so much "
            "of it as the time limit of their collective allows"
        )
    return "see what this line waits for, and why only this rank does"

"""RNK005: ranks do not have the same number of batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..records.crash import RaisedException
from ..records.ranks import PassEnds
from ..types import Event, Finding, Severity
from ._ranks import RankDetector, RankLane, named, replicas
from .peers import peer_is_gone


class UnevenBatches(RankDetector):
    """Ranks do not have the same number of batches, or not the same number of samples in them.

    What it detects:
        A pass over the data that ends after fewer steps on one rank than on others, a rank that is
        through with its data while others wait for it, and a last batch with another number of
        samples on some ranks (information). Not inside of DDP's ``join()``.

    Why it matters:
        Every step of DDP and FSDP needs all ranks. The one that is through calls no more
        collectives, or others than the ranks that still train: those wait for ever, or average the
        gradients of different epochs.

    Evidence:
        ``ranks`` compared; ``pass``: its number; ``steps_done``: steps after which it ended, by
        rank, -1 where it has not; ``samples`` of the last batch, by rank.

    Usual causes:
        - A share of the samples by hand (``dataset[rank::world]``) that does not divide evenly.
        - A filter, a stream or a failed sample that drops data on one rank.
        - ``drop_last`` or ``batch_size`` that differ.

    What to do:
        1. ``DistributedSampler`` (it repeats some samples) or ``drop_last=True`` on all ranks.
        2. Cut streams to the shortest: agree on the number of batches before the epoch.
        3. ``with model.join():`` lets DDP finish ranks that have more.

    False alarms:
        None known of ranks that wait. Ranks that go on without collectives may differ on purpose.

    Cost:
        One event per pass, the first 16 of a run, where there are several ranks.

    Reproduce:
        ``holdfast run -m holdfast.faults.uneven_batches`` names the rank that is through first in
        ``python -m holdfast.faults.uneven_batches``.
    """

    code = "RNK005"
    name = "uneven_batches"
    severity = Severity.ERROR
    other_severities = ((Severity.INFO, "where only the number of samples differs"),)
    needs = ("loss",)
    since = "0.1"
    within = 1000

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """The first pass that is not the same on all ranks."""
        if not replicas(lanes) or any(lane.facts.join for lane in lanes):
            return
        passes = [dict(map(_ended, lane.events_of(PassEnds.kind))) for lane in lanes]
        for number in sorted({n for each in passes for n in each if n}):
            ended = [each.get(number, (-1, 0)) for each in passes]
            steps, samples = [step for step, _ in ended], [count for _, count in ended]
            reported = {"pass": number, "steps_done": steps, "samples": samples}
            if -1 in steps:
                yield from self._through(lanes, steps, reported)
                return
            if len(set(steps)) > 1:
                yield self._uneven(lanes, steps, reported)
                return
            if len(set(samples)) > 1 and 0 not in samples:
                yield self._unequal(lanes, steps[0], reported)
                return
        yield from self._left(lanes)

    def _through(
        self, lanes: Sequence[RankLane], steps: Sequence[int], reported: Mapping[str, Any]
    ) -> Iterator[Finding]:
        """Some are through with a pass, and others wait or have failed in it."""
        done = [lane for lane, step in zip(lanes, steps, strict=True) if step >= 0]
        others = [lane for lane in lanes if lane not in done]
        if not all(map(_stuck, others)):
            return  # perhaps they are at its last step
        at = max(steps)
        yield self.about(
            lanes,
            step=at,
            rank=done[0].rank,
            what=f"{named([lane.rank for lane in done])} had no more batches after {at:,} steps, "
            f"{named([lane.rank for lane in others])} had, and waited for a step that never came",
            advice=_ADVICE,
            evidence=reported,
            **_loader(done[0]),
        )

    def _uneven(
        self, lanes: Sequence[RankLane], steps: Sequence[int], reported: Mapping[str, Any]
    ) -> Finding:
        short = min(range(len(lanes)), key=lambda i: steps[i])
        counts = ", ".join(
            f"{s:,} on rank {lane.rank}" for lane, s in zip(lanes, steps, strict=True)
        )
        return self.about(
            lanes,
            step=min(steps),
            rank=lanes[short].rank,
            what=f"pass {reported['pass']} over the data ends after different numbers of steps: "
            f"{counts}",
            advice=_ADVICE,
            evidence=reported,
            **_loader(lanes[short]),
        )

    def _unequal(
        self, lanes: Sequence[RankLane], step: int, reported: Mapping[str, Any]
    ) -> Finding:
        few = min(range(len(lanes)), key=lambda i: reported["samples"][i])
        counts = ", ".join(
            f"{n} on rank {lane.rank}" for lane, n in zip(lanes, reported["samples"], strict=True)
        )
        return self.about(
            lanes,
            step=step,
            rank=lanes[few].rank,
            what=f"the last batch of a pass has different numbers of samples: {counts}; each rank "
            "counts the same in the average",
            advice="drop_last=True on all ranks, or weigh the loss by the number of samples",
            severity=Severity.INFO,
            evidence=reported,
            **_loader(lanes[few]),
        )

    def _left(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """Without a loader: a rank has ended well while others failed for want of it."""
        done = [lane for lane in lanes if lane.events_of("end") and not lane.events_of("exception")]
        failed = [lane for lane in lanes if any(map(_lost, lane.events_of("exception")))]
        if not done or not failed or len(done) + len(failed) < len(lanes):
            return
        steps = [lane.last_step + 1 if lane in done else -1 for lane in lanes]
        yield self.about(
            lanes,
            step=max(steps),
            rank=done[0].rank,
            what=f"{named([lane.rank for lane in done])} ended after {max(steps):,} steps, "
            f"{named([lane.rank for lane in failed])} had more to do and lost the connection",
            advice=_ADVICE,
            evidence={
                "pass": 0,
                "steps_done": steps,
                "samples": [],
                "explains": [["RUN001", lane.rank] for lane in failed],
            },
        )


_ADVICE = (
    "give all ranks the same number of batches: DistributedSampler, drop_last=True, or cut to the "
    "shortest; with model.join(): lets ranks finish one by one"
)


def _loader(lane: RankLane) -> dict[str, Any]:
    """The line that made the loader of a rank."""
    file, line = lane.loader
    return {"file": file, "line": line}


def _ended(event: Event) -> tuple[int, tuple[int, int]]:
    """The number of a pass, its last step and the samples of its last batch; 0 of no pass."""
    found = PassEnds.of(event)
    return (0, (-1, 0)) if found is None else (found.number, (event.step, found.samples or 0))


def _lost(event: Any) -> bool:
    return peer_is_gone(RaisedException.of(event))


def _stuck(lane: RankLane) -> bool:
    """Whether a rank hangs, or failed because another one was gone."""
    hangs = any(f.code == "RUN004" and f.severity is Severity.ERROR for f in lane.findings)
    return hangs or any(map(_lost, lane.events_of("exception")))

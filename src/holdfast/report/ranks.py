"""The ranks of a run side by side: the odd one first, then the slowest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Finding, Severity
from . import words
from .lanes import LaneSummary

HEAD = (
    "rank", "steps", "loss", "per step", "data", "forward", "backward", "optimizer", "other",
    "collective", "skipped", "memory", "end",
)  # fmt: skip
# Rows of a table; a page about a thousand ranks has an end.
SHOWN = 32
_MEMORY = ("mem_allocated", "rss")
_OTHER = ("h2d", "other")
_TOGETHER = ("backward", "collective")


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """What one rank did, over all its starts."""

    rank: int
    steps: int
    skipped: int
    loss: float
    phases: dict[str, float]
    """Mean seconds per step."""
    memory: float
    """Bytes at most: of the device, else of the process."""
    end: str
    odd: bool = False
    """Whether a finding above information names this rank, and not all of them."""

    @property
    def own(self) -> float:
        """Seconds per step without those in which ranks wait for each other."""
        return sum(s for name, s in self.phases.items() if name not in _TOGETHER)

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of a table, in the order of ``HEAD``."""
        phases = self.phases
        other = sum(phases.get(name, 0.0) for name in _OTHER)
        times = [sum(phases.values()), phases.get("data_wait", 0.0)]
        times += [phases.get(name, 0.0) for name in ("forward", "backward", "optimizer")]
        times += [other, phases.get("collective", 0.0)]
        return (
            str(self.rank),
            words.number(self.steps),
            "" if math.isnan(self.loss) and not self.steps else words.figure(self.loss),
            *(words.duration(seconds) if seconds else "" for seconds in times),
            words.number(self.skipped),
            words.size(self.memory) if self.memory else "",
            self.end,
        )


def rank_summaries(
    lanes: Sequence[LaneSummary], findings: Sequence[Finding]
) -> tuple[RankSummary, ...]:
    """The ranks of a run; none where there is only one."""
    by_rank: dict[int, list[LaneSummary]] = {}
    for lane in lanes:
        by_rank.setdefault(lane.rank, []).append(lane)
    if len(by_rank) < 2:
        return ()
    blamed = {f.rank for f in findings if f.severity > Severity.INFO and _singles_out(f)}
    made = [_summary(rank, starts, rank in blamed) for rank, starts in by_rank.items()]
    return tuple(sorted(made, key=lambda one: (not one.odd, -one.own, one.rank)))


def rank_line(ranks: Sequence[RankSummary]) -> str:
    """What the table shows, in a sentence."""
    odd = [one.rank for one in ranks if one.odd]
    slow = max(ranks, key=lambda one: one.own)
    reported = f"{words.ranks(odd)} named by a finding; " if odd else ""
    return (
        f"{reported}rank {slow.rank} takes longest besides backward and collectives, in which "
        "ranks "
        f"wait for each other: {words.duration(slow.own)} per step, the fastest "
        f"{words.duration(min(one.own for one in ranks))}"
    )


def _summary(rank: int, starts: Sequence[LaneSummary], odd: bool) -> RankSummary:
    last = next((lane for lane in reversed(starts) if lane.steps), starts[-1])
    peaks = [last.peak_bytes[name] for name in _MEMORY if last.peak_bytes.get(name)]
    return RankSummary(
        rank=rank,
        steps=max(lane.last_step for lane in starts) + 1,
        skipped=sum(lane.skipped for lane in starts),
        loss=last.last_loss,
        phases=dict(last.phases),
        memory=peaks[0] if peaks else 0.0,
        end=starts[-1].end,
        odd=odd,
    )


def _singles_out(finding: Finding) -> bool:
    """Whether a finding is about one rank; what all of them share is told once, of the first."""
    return finding.code.startswith("RNK") or finding.rank > 0

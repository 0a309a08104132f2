"""RNK002: one rank is slow and all others wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types import Finding, Severity
from ._lines import SourceLine
from ._ranks import RankDetector, RankLane, named, same_model, side_by_side, spot

# Phases in which a rank is slow by itself, the earliest of a step first: what comes later in a step
# may be a wait for what came before it.
_PHASES = {
    "data_wait": ("data", "waiting for data"),
    "h2d": ("compute", "copying to the device"),
    "other": ("code", "code outside of model and optimizer"),
    "forward": ("compute", "the forward pass and what belongs to no other phase"),
    "optimizer": ("compute", "optimizer.step"),
}
_ADVICE = {
    "data": "look at the data of that rank: its files, its disk, its share of the samples, its "
    "num_workers",
    "compute": "look at its cores (other processes on them, fewer threads), and at work that only "
    "this rank does or gets (longer samples)",
    "device": "look at its device (nvidia-smi: clocks, temperature, other processes), at its "
    "cores, and at work that only this rank does or gets (longer samples)",
    "code": "look at what only this rank does between two steps, as logging, saving and "
    "evaluation: do it less often, or on all ranks in turn",
}
# Phases in which ranks wait for each other.
_WAITS = ("backward", "collective")
# Part of what the slow rank needs more that a line must take to be named.
_MOST = 0.5
# Time of a backward pass in that of its forward pass, as a rule.
_BACKWARD = 2.0


class Straggler(RankDetector):
    """One rank is slow: all others wait for it in every step.

    What it detects:
        A rank that needs longer than all others for the same part of a step (data, copies, forward
        pass, optimizer, other code) on most steps, while the steps of all ranks are equally long
        because they wait for it in a collective.

    Why it matters:
        A step takes as long as the slowest rank does: with 64 ranks one slow disk costs 64 GPUs.

    Evidence:
        ``ranks`` compared; ``phase`` of the step that differs, ``kind``: ``data``, ``compute`` or
        ``code``; ``seconds`` of it on the slow rank and ``others`` on the next slowest; ``lost``:
        seconds per step that all ranks wait, ``share`` of the step; ``behind``: share of the steps
        on which it is behind; ``waits``: seconds that the fastest rank spends in backward
        and in other collectives.

    Usual causes:
        - A slow disk, a cold cache or fewer loader workers on one node.
        - A GPU that is hot, shared or of another kind.
        - Logging, saving or evaluation on rank 0 alone.
        - Samples of unequal length, the long ones on one rank.

    What to do:
        1. Look at what the named phase does on the named rank.
        2. Spread the work: the same number of workers, samples sorted by length over ranks.
        3. Save and evaluate rarely, or on all ranks.

    False alarms:
        Ranks that share a core with other processes; pipelines whose stages do different work
        (models of different layers are not compared).

    Cost:
        None: times of phases are recorded anyway, and compared beside training.

    Reproduce:
        ``holdfast run -m holdfast.faults.straggler`` names the rank and the phase that
        ``python -m holdfast.faults.straggler`` waits for.
    """

    code = "RNK002"
    name = "straggler"
    severity = Severity.WARNING
    needs = (*_PHASES, *_WAITS)
    since = "0.1"
    within = 100

    @dataclass(frozen=True, kw_only=True)
    class Options(RankDetector.Options):
        """Guesses."""

        steps: int = 40
        """Steps that must be comparable."""
        first: int = 16
        """Steps at the start that are not: compilation, caches, workers."""
        share: float = 0.2
        """Part of a step that is lost."""
        behind: float = 0.6
        """Share of the steps on which the rank is behind all others."""
        together: float = 0.15
        """How far steps of ranks may differ in length where they wait for each other."""
        seconds: float = 1e-3
        """Less is not worth a word."""

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """The slow rank and its phase, if there is one."""
        if not same_model(lanes):
            return
        options = self.options
        names = [*_PHASES, *_WAITS]
        steps, values = side_by_side(lanes, *names)
        phases = dict(zip(names, values, strict=True))
        # Phases on a device are sampled, on the same steps of all ranks.
        known = np.isfinite(phases["forward"]).all(axis=0) & (steps >= steps[:1] + options.first)
        if known.sum() < options.steps:
            return
        phases = {name: np.nan_to_num(values[:, known]) for name, values in phases.items()}
        length = np.sum(list(phases.values()), axis=0)
        typical = np.median(length, axis=1)
        if typical.max() - typical.min() > options.together * typical.max():
            return  # they do not wait for each other
        waits = np.sum([phases[name] for name in _WAITS], axis=0)
        for name in _PHASES:
            # What is slow in forward is slow in backward too, where the others wait and it is not
            # seen: that takes twice as long.
            times = 1.0 + _BACKWARD if name == "forward" else 1.0
            found = self._slow(phases[name], times, waits, float(np.median(typical)))
            if found is not None:
                yield self._finding(lanes, name, found, phases, steps[known])
                return

    def _slow(
        self, seconds: NDArray[Any], times: float, waits: NDArray[Any], step: float
    ) -> _Slow | None:
        """The rank that is slow in a phase, and ``times`` as long in what is not seen of it."""
        slow = int(np.argmax(np.mean(seconds, axis=1)))
        others = np.delete(seconds, slow, axis=0).max(axis=0)
        ahead: NDArray[np.float64] = seconds[slow] - others
        lost = times * float(ahead.mean())
        behind = float((times * ahead > 0.5 * self.options.share * step).mean())
        if behind < self.options.behind:
            return None
        if lost < max(self.options.seconds, self.options.share * step):
            return None
        # Nobody loses more than it waits.
        waited = float(np.delete(waits, slow, axis=0).min(axis=0).mean())
        return _Slow(slow, float(ahead.mean()), min(lost, max(waited, float(ahead.mean()))), behind)

    def _finding(
        self,
        lanes: Sequence[RankLane],
        phase: str,
        found: _Slow,
        phases: dict[str, NDArray[Any]],
        steps: NDArray[Any],
    ) -> Finding:
        lane, (kind, words) = lanes[found.at], _PHASES[phase]
        own = float(phases[phase][found.at].mean())
        length = sum(float(seconds[found.at].mean()) for seconds in phases.values())
        waiting = [other.rank for other in lanes if other is not lane]
        file, line = _line(lanes, lane, kind, found.ahead)
        wait = "waits" if len(waiting) == 1 else "wait"
        on_device = kind == "compute" and "nccl" in lane.facts.backend
        advice = _ADVICE["device" if on_device else kind]
        return self.about(
            lanes,
            step=int(steps[0]),
            rank=lane.rank,
            what=f"rank {lane.rank} spends {_ms(own)} per step on {words}{spot((file, line))}, the "
            f"others {_ms(own - found.ahead)}: {named(waiting)} {wait} {_ms(found.lost)} of "
            f"{_ms(length)}",
            advice=f"look at what that line does on rank {lane.rank} alone; {advice}"
            if line
            else advice,
            confidence=0.8,
            file=file,
            line=line,
            evidence={
                "phase": phase,
                "kind": kind,
                "seconds": own,
                "others": own - found.ahead,
                "lost": found.lost,
                "share": found.lost / length,
                "behind": found.behind,
                "waits": float(np.mean(sum(phases[n] for n in _WAITS), axis=1).max()),
            },
        )


@dataclass(frozen=True)
class _Slow:
    """A slow rank in one phase of its steps."""

    at: int
    """Which of the ranks."""
    ahead: float
    """Seconds per step more than the next slowest."""
    lost: float
    """Seconds per step that all ranks lose by it."""
    behind: float
    """Share of the steps on which it is."""


def _line(lanes: Sequence[RankLane], slow: RankLane, kind: str, ahead: float) -> tuple[str, int]:
    """The line at which the slow rank spends what the others do not; "", 0 where nobody knows."""
    judged = [f for f in slow.findings if f.code.startswith("TPT") and f.line]
    for finding in judged:
        if finding.code == "TPT001" and kind == "data":
            return finding.file, finding.line
    timed = [_timed(lane) for lane in lanes]
    if all(timed):
        own_part = timed[lanes.index(slow)]
        others = [each for lane, each in zip(lanes, timed, strict=True) if lane is not slow]
        more = {at: s - max(each.get(at, 0.0) for each in others) for at, s in own_part.items()}
        at = max(more, key=more.__getitem__)
        if more[at] >= _MOST * ahead:
            return at.file, at.line
    first = next((f for f in judged if (f.code == "TPT001") == (kind == "data")), None)
    return ("", 0) if first is None else (first.file, first.line)


def _timed(lane: RankLane) -> dict[SourceLine, float]:
    """Seconds of each line in an ordinary step, as a rank has timed them last."""
    spent: dict[SourceLine, float] = {}
    for line in () if lane.look is None else lane.look.now.lines:
        turn = lane.look.turn if lane.look is not None and line.mark == "model" else None
        # The model is the same on all ranks: what differs is what the loop gives to it.
        at = turn.inner(line) if turn is not None and turn.holds(line) else line.at
        spent[at] = spent.get(at, 0.0) + line.seconds
    return spent


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"

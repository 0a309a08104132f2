"""RNK004: ranks train on the same data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records.ranks import PassEnds
from ..types import Finding, Severity
from ._ranks import Origin, RankDetector, RankLane, named, replicas, side_by_side, spot


class SameData(RankDetector):
    """Ranks train on the same data: every batch is computed once per rank.

    What it detects:
        Under DDP or FSDP, batches of two or more ranks that are equal on nearly every step, by the
        dataset indices that their loaders drew or by their values, while losses rise and fall
        together; without a loader, losses that are equal bit for bit on every step. And batches
        that come in the same order in every pass although they are shuffled (information).

    Why it matters:
        The run costs as many devices as there are ranks and learns as much as one of them would.
        Without ``set_epoch`` all epochs have one order, which is not what shuffling means.

    Evidence:
        ``ranks`` that share data; ``equal`` of ``compared`` batches (or losses: ``by``);
        ``period``: steps after which the same batches come again, where that is the fault.

    Usual causes:
        - A DataLoader without a ``DistributedSampler``, with the same seed on all ranks.
        - A sampler with ``num_replicas=1`` or the same ``rank`` everywhere.
        - An IterableDataset that does not split its samples by rank.
        - ``sampler.set_epoch(epoch)`` is missing.

    What to do:
        1. ``DataLoader(dataset, sampler=DistributedSampler(dataset))``, without ``shuffle=True``.
        2. ``sampler.set_epoch(epoch)`` at the start of every epoch.
        3. Data that is made in the loop: ``torch.manual_seed(seed + rank)`` after the model.

    False alarms:
        A loss that is the same on all ranks by design (features gathered over ranks) in a loop
        without a DataLoader. Tensor-parallel ranks share batches on purpose and are not compared
        unless all of them are wrapped in DDP.

    Cost:
        None: fingerprints of batches are recorded anyway.

    Reproduce:
        ``holdfast run -m holdfast.faults.same_data`` says that the two ranks of
        ``python -m holdfast.faults.same_data`` read the same samples.
    """

    code = "RNK004"
    name = "same_data"
    severity = Severity.WARNING
    other_severities = ((Severity.INFO, "where only the order of an epoch repeats"),)
    needs = ("batch", "loss")
    since = "0.1"
    within = 32

    @dataclass(frozen=True, kw_only=True)
    class Options(RankDetector.Options):
        """Guesses."""

        batches: int = 8
        """Batches to compare."""
        losses: int = 20
        """Losses to compare, where there are no batches."""
        share: float = 0.9
        """Part of them that must be equal."""
        together: float = 0.5
        """How far losses must go up and down together (correlation of their steps) where indices
        are equal: each rank may have a dataset of its own, with the same numbers."""

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """Ranks that share their data, or one order for all passes."""
        wrapper = replicas(lanes)
        if not wrapper:
            return
        steps, (batches, losses) = side_by_side(lanes, "batch", "loss")
        known = np.isfinite(batches).all(axis=0)
        if known.sum() >= self.options.batches:
            shared = self._shared(lanes, batches[:, known], "batches", steps[known])
            if shared is not None and not self._move_together(losses[:, known]):
                return
            # Of sharded models some ranks may hold parts of the same layers, and share data.
            if shared is not None and (
                wrapper == "ddp" or len(shared.evidence["ranks"]) == len(lanes)
            ):
                yield shared
            elif shared is None:
                yield from self._repeated(lanes, batches[:, known], steps[known])
            return
        finite = np.isfinite(losses).all(axis=0)
        values = losses[:, finite]
        moves = values.size > 0 and bool((values.std(axis=1) > 0).all())
        if not np.isfinite(batches).any() and finite.sum() >= self.options.losses and moves:
            shared = self._shared(lanes, values, "losses", steps[finite])
            if shared is not None:
                yield shared

    def _move_together(self, losses: NDArray[Any]) -> bool:
        """Whether the losses of ranks with equal weights rise and fall with the same batches."""
        moves = np.diff(losses[:, np.isfinite(losses).all(axis=0)], axis=1)
        if moves.shape[1] < self.options.batches or not (moves.std(axis=1) > 0).all():
            return True  # too little is known to tell
        return bool(np.median(np.corrcoef(moves)[0, 1:]) >= self.options.together)

    def _shared(
        self, lanes: Sequence[RankLane], values: NDArray[Any], by: str, steps: NDArray[Any]
    ) -> Finding | None:
        """The largest group of ranks with the same values."""
        alike = [[float((a == b).mean()) >= self.options.share for b in values] for a in values]
        groups = [[i for i, same in enumerate(row) if same] for row in alike]
        group = max(groups, key=len)
        if len(group) < 2:
            return None
        chosen = [lanes[i] for i in group]
        equal = int((values[group] == values[group[:1]]).all(axis=0).sum())
        at = chosen[-1].loader if by == "batches" else ("", 0)
        what = f"{named([lane.rank for lane in chosen])} train on the same data: "
        what += f"{equal:,} of {len(steps):,} {by} are equal{_of_loader(at)}"
        sampled = "sampler=DistributedSampler(dataset) in place of shuffle=True, with set_epoch()"
        if all(lane.facts.sampler for lane in chosen):
            sampled = "see num_replicas and rank of its DistributedSampler, or which loader has it"
        elif not any(lane.facts.batch_size for lane in chosen):
            # Nobody draws indices, as of a stream, which takes no sampler.
            sampled = "let the dataset hand out its part alone, as in "
            sampled += "itertools.islice(samples, rank, None, world_size)"
        made = "make other data on each rank: torch.manual_seed(seed + rank) after the model"
        return self.about(
            chosen,
            step=int(steps[0]),
            rank=chosen[-1].rank,
            what=what,
            advice=f"give each rank its part: {sampled}" if by == "batches" else made,
            confidence=1.0 if by == "batches" else 0.7,
            file=at[0],
            line=at[1],
            evidence={"equal": equal, "compared": len(steps), "by": by, "period": 0},
        )

    def _repeated(
        self, lanes: Sequence[RankLane], batches: NDArray[Any], steps: NDArray[Any]
    ) -> Iterator[Finding]:
        """The same order in every pass of a shuffled loader."""
        sampler = [lane.facts.sampler for lane in lanes]
        ends = [event.step for event in lanes[0].events_of(PassEnds.kind)]
        if not all(sampler) or not ends:
            return
        period = ends[0] - int(steps[0])
        if (
            period < 2
            or len(steps) < 2 * period
            or int(steps[2 * period - 1] - steps[0]) >= 2 * period
        ):
            return
        if bool((batches[:, :period] == batches[:, period : 2 * period]).all()):
            at = lanes[0].loader
            yield self.about(
                lanes,
                step=int(steps[period]),
                rank=lanes[0].rank,
                file=at[0],
                line=at[1],
                what=f"the second pass has the same {period} batches in the same order as the "
                f"first, although the DistributedSampler shuffles{_of_loader(at)}",
                advice="call sampler.set_epoch(epoch) at the start of every epoch",
                severity=Severity.INFO,
                evidence={"equal": period, "compared": period, "by": "batches", "period": period},
            )


def _of_loader(at: Origin) -> str:
    return f" (the loader made{spot(at)})" if at[1] else ""

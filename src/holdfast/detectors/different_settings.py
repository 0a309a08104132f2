"""RNK006: ranks run different code or settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..records.ranks import Parallel
from ..records.run import Start
from ..types import Finding, Severity
from ._ranks import RankDetector, RankLane, named, side_by_side, spot

_FACTS = {
    "source": "the source of the script",
    "torch": "the version of torch",
    "python": "the version of Python",
    "wrapper": "the wrapper of the model",
    "group": "the size of the process group",
    "world": "WORLD_SIZE",
    "cls": "the optimizer",
    "dtype": "the dtype of the weights",
    "batch_size": "the batch size",
    "find_unused": "find_unused_parameters",
    "static_graph": "static_graph",
}


class DifferentSettings(RankDetector):
    """Ranks run different code or settings: script, versions, learning rate, batch size.

    What it detects:
        A script of another content, another version of torch or Python, another optimizer, dtype,
        batch size, process group, option of DDP or of the optimizer on some rank, compared at the
        first step; and learning rates that differ, compared on every step. What moves weights
        differently is an error, the rest a warning.

    Why it matters:
        Ranks that should do the same do not: replicas drift apart although every gradient is
        averaged, or results cannot be repeated.

    Evidence:
        ``ranks`` compared and ``odd`` those that differ from most; ``setting``: its name;
        ``values``: by rank, as text; ``explains``: replicas that differ follow from it.

    Usual causes:
        - A file system that has not synchronized an edited file to all nodes, or another
          environment there.
        - ``if rank == 0`` around something that changes the run.
        - A schedule that is stepped by a rank's own loss (``ReduceLROnPlateau``), or by its number
          of batches.

    What to do:
        1. Start all ranks from one folder and one environment.
        2. Step schedules by values that are equal on all ranks: reduce the metric first.

    False alarms:
        Batch sizes that differ on purpose, for devices of different size.

    Cost:
        One event at the first step of every optimizer, where there are several ranks.

    Reproduce:
        ``holdfast run -m holdfast.faults.different_settings`` says which setting differs in
        ``python -m holdfast.faults.different_settings``.
    """

    code = "RNK006"
    name = "different_settings"
    severity = Severity.WARNING
    other_severities = ((Severity.ERROR, "of a setting that moves the weights apart"),)
    needs = ("lr",)
    since = "0.1"

    @dataclass(frozen=True, kw_only=True)
    class Options(RankDetector.Options):
        """A guess, above what float32 columns round."""

        apart: float = 1e-5
        """Relative difference of two learning rates."""

    def compare(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        """One finding for each setting that differs."""
        facts = [lane.parallel for lane in lanes if lane.parallel is not None]
        if len(facts) < len(lanes) or not any(each.wrapper for each in facts):
            return
        if len({each.model for each in facts}) > 1:
            return  # DDP and FSDP refuse them within a group: these train apart, on purpose
        for name, words in _FACTS.items():
            values = [_value(lane, name) for lane in lanes]
            if len(set(values)) > 1 and all(values):
                yield self._finding(lanes, 0, name, words, values)
        yield from self._optimizers(lanes, facts)
        yield from self._rates(lanes)

    def _optimizers(
        self, lanes: Sequence[RankLane], facts: Sequence[Parallel]
    ) -> Iterator[Finding]:
        """Settings of the optimizers, by which the same gradient moves weights differently."""
        reported = [each.settings for each in facts]
        for name in dict.fromkeys(key for each in reported for key in each):
            values = [str(each.get(name)) for each in reported]
            if len(set(values)) > 1:
                yield self._finding(lanes, 0, name, f"{name} of the optimizer", values)

    def _rates(self, lanes: Sequence[RankLane]) -> Iterator[Finding]:
        steps, (rates,) = side_by_side(lanes, "lr")
        if not len(steps):
            return
        with np.errstate(invalid="ignore"):
            spread = rates.max(axis=0) - rates.min(axis=0)
            differs = np.flatnonzero(spread > self.options.apart * np.abs(rates).max(axis=0))
        if differs.size:
            first = int(differs[0])
            values = [f"{rate:.6g}" for rate in rates[:, first]]
            yield self._finding(lanes, int(steps[first]), "lr", "the learning rate", values)

    def _finding(
        self, lanes: Sequence[RankLane], step: int, name: str, words: str, values: Sequence[str]
    ) -> Finding:
        usual, _ = Counter(values).most_common(1)[0]
        odd = [lane.rank for lane, value in zip(lanes, values, strict=True) if value != usual]
        other = next(value for value in values if value != usual)
        rest = [lane.rank for lane in lanes if lane.rank not in odd]
        moves = name not in _FACTS or name in ("cls", "dtype")
        first = next(lane for lane in lanes if lane.rank in odd)
        at = first.loader if name == "batch_size" else ("", 0)
        if name not in _FACTS or name == "cls":
            at = first.made
        return self.about(
            lanes,
            step=step,
            rank=odd[0],
            what=f"{words} is {other[:40]} on {named(odd)} and {usual[:40]} on {named(rest)}"
            f"{f' (made{spot(at)})' if at[1] else ''}",
            file=at[0],
            line=at[1],
            advice=f"make {words} the same on all ranks: look for code that depends on the rank, "
            "and for files or an environment that differ between nodes",
            severity=Severity.ERROR if moves else self.severity,
            evidence={
                "explains": [["RNK001", lane.rank] for lane in lanes] if moves else [],
                "odd": odd,
                "setting": name,
                "values": list(values),
                "key": name,
            },
        )


def _value(lane: RankLane, name: str) -> str:
    """One of ``_FACTS``, empty where it is not known."""
    start = next(iter(lane.records_of(Start)), Start())
    value = getattr(lane.facts if name in Parallel.fields() else start, name)
    return "" if value is None else str(value)

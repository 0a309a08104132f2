"""What each rule of the detectors wins: every condition switched off in turn over recorded runs.

    python benchmarks/detection.py --keep DIR               # record the collections, once
    python benchmarks/rules.py DIR                          # then switch off each condition
    python benchmarks/rules.py DIR --only stall --jobs 2

A condition is kept at true and then at false while the recorded runs are judged again. It wins the
scripts that are graded worse then (fault not found, not first, other line, healthy run accused); of
the two, the constant that costs less counts, since that is what would stand there instead. Only runs
in which the condition took the other value are judged. Counting ends at ``--most`` scripts.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detecting.conditions import Condition, Conditions, watch

if TYPE_CHECKING:
    from detecting.corpus import Case
    from detecting.score import Grade
    from detecting.trial import Trial

ROOMS = ("holdfast.detectors",)


@dataclass(frozen=True, slots=True)
class Effect:
    """What becomes of the scripts when a condition keeps one value."""

    value: bool
    runs: int
    """Runs in which it took the other value."""
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    other: int = 0
    """Runs about which something else is said, neither better nor worse."""
    failed: int = 0
    """Runs in which a detector failed without it."""

    @property
    def cost(self) -> tuple[int, int, int]:
        """To compare the two constants of a condition."""
        return self.failed, len(self.worse) - len(self.better), self.other


Field = tuple[str, str]
"""Kind of an event, and a name in its data."""


def _less(event: Any, without: Field) -> Any:
    kind, key = without
    if event.kind != kind or key not in event.data:
        return event
    return replace(event, data={k: v for k, v in event.data.items() if k != key})


class Runs:
    """Recorded runs, read once and judged as often as needed."""

    def __init__(self, folder: Path, conditions: Conditions) -> None:
        from detecting.corpus import choose_collections, read_collections
        from detecting.running import read_trials

        from holdfast.errors import HoldfastError
        from holdfast.report.lanes import read_lanes
        from holdfast.run import Run

        self.conditions = conditions
        self.cases: dict[str, Case] = {}
        self.lanes: dict[str, Any] = {}
        self.trials: Mapping[str, Trial] = read_trials(folder)
        for case in read_collections(choose_collections(())):
            if case.name not in self.trials or not (folder / case.name).exists():
                continue
            try:
                self.lanes[case.name] = read_lanes(Run.open(folder / case.name))
                self.cases[case.name] = case
            except HoldfastError as error:
                print(f"{case.name}: {error}", file=sys.stderr)
        self.before: dict[str, tuple[Grade, str, int]] = {}
        self.values: dict[str, Mapping[int, set[bool]]] = {}
        for name in self.cases:
            conditions.values = {}
            self.before[name] = self.judge(name)
            self.values[name] = conditions.values

    def judge(self, name: str, without: Field | None = None) -> tuple[Grade, str, int]:
        """The grade of a run, everything that is said about it, and how many detectors failed."""
        from detecting.score import grade
        from detecting.trial import _found

        from holdfast.detectors import ALL
        from holdfast.detectors.judge import Judge
        from holdfast.report.joined_findings import join_ranks

        found: list[Any] = []
        failed = 0
        for lane in self.lanes[name]:
            judge = Judge(ALL, rank=lane.rank)
            events = lane.events if without is None else [_less(e, without) for e in lane.events]
            judge.feed(lane.steps, events, lane.batches)
            judge.close()
            found += [(lane.lane, finding) for finding in judge.findings]
            failed += len(judge.errors)
        groups = join_ranks(found)
        trial = replace(self.trials[name], findings=_found(groups), known={})
        said = "\n".join(f"{f.severity} {f.message} {f.advice}" for g in groups for f in g.findings)
        return grade(self.cases[name], trial), said, failed

    def fields(self) -> dict[Field, list[str]]:
        """Everything that events hold, and the runs with such events."""
        found: dict[Field, list[str]] = {}
        for name, lanes in self.lanes.items():
            of_run = {
                (event.kind, key)
                for lane in lanes
                for event in lane.events
                for key in event.data
                if event.data[key] not in (None, "", 0, False)
            }
            for each in of_run:
                found.setdefault(each, []).append(name)
        return found

    def without_field(self, which: Field, names: list[str], most: int) -> Effect:
        """Judge the runs whose events hold a field, without that field."""
        return self._effect(True, names, most, which)

    def effect(self, number: int, value: bool, most: int) -> Effect:
        """Judge the runs in which a condition took the other value."""
        names = [n for n in self.cases if (not value) in self.values[n].get(number, ())]
        self.conditions.forced = (number, value)
        try:
            return self._effect(value, names, most)
        finally:
            self.conditions.forced = (-1, False)

    def _effect(
        self, value: bool, names: list[str], most: int, without: Field | None = None
    ) -> Effect:
        random.Random(0).shuffle(names)
        worse: list[str] = []
        better: list[str] = []
        other = failed = 0
        for name in names:
            grade, said, errors = self.judge(name, without)
            was, said_before, errors_before = self.before[name]
            difference = _points(grade) - _points(was)
            if difference < 0:
                worse.append(name)
            elif difference > 0:
                better.append(name)
            elif said != said_before:
                other += 1
            failed += errors > errors_before
            if failed >= most or len(worse) - len(better) >= most:
                break
        return Effect(value, len(names), tuple(worse), tuple(better), other, failed)


def _points(grade: Grade) -> int:
    if grade.case.healthy:
        return -2 * bool(grade.alarms)
    return 4 * grade.detected + 2 * grade.first + bool(grade.near) + bool(grade.exact)


_runs: Runs | None = None


def _load(folder: Path) -> None:
    global _runs  # noqa: PLW0603
    conditions = watch(ROOMS)
    _runs = Runs(folder, conditions)


def _try(task: tuple[int, int]) -> tuple[int, Condition, list[Effect]]:
    number, most = task
    assert _runs is not None
    effects = [_runs.effect(number, value, most) for value in (True, False)]
    return number, _runs.conditions.known[number], effects


def main() -> int:
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("folder", metavar="DIR", type=Path, help="runs kept by detection.py")
    made.add_argument("--only", metavar="NAME", default="", help="modules whose name has this")
    made.add_argument("--jobs", metavar="N", type=int, default=1, help="at a time (default: 1)")
    made.add_argument("--most", metavar="N", type=int, default=6, help="stop counting (default: 6)")
    made.add_argument("--fields", action="store_true", help="fields of events instead")
    args = made.parse_args()
    _load(args.folder)
    assert _runs is not None
    wanted = [
        (i, args.most)
        for i, c in enumerate(_runs.conditions.known)
        if any(w in c.module for w in args.only.split(","))
    ]
    if args.fields:
        for which, names in sorted(_runs.fields().items()):
            effect = _runs.without_field(which, names, args.most)
            counts = [len(effect.worse), len(effect.better), effect.other, effect.failed]
            print("\t".join([*which, *map(str, [effect.runs, *counts]), " ".join(effect.worse)]), flush=True)
        return 0
    print(f"{len(_runs.cases)} runs, {len(wanted)} conditions", file=sys.stderr, flush=True)
    context = multiprocessing.get_context("fork")
    with context.Pool(args.jobs) as pool:
        for number, condition, effects in pool.imap(_try, wanted):
            print("\t".join(row_of(number, condition, effects)), flush=True)
    return 0


def row_of(number: int, condition: Condition, effects: Sequence[Effect]) -> list[str]:
    least = min(effects, key=lambda effect: effect.cost)
    runs = sum(e.runs for e in effects)
    return [
        condition.module.removeprefix("holdfast."),
        str(condition.line),
        condition.text,
        "unused" if not runs else str(least.value),
        str(len(least.worse)),
        str(len(least.better)),
        str(least.other),
        str(least.failed),
        "/".join(str(e.runs) for e in effects),
        " ".join(least.worse),
    ]


if __name__ == "__main__":
    sys.exit(main())

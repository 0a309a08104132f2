"""What each rule of the detectors wins: every condition switched off in turn over recorded runs.

    python benchmarks/detection.py --keep DIR               # record the collections, once
    python benchmarks/rules.py DIR --jobs 2                 # then switch each condition off
    python benchmarks/rules.py DIR --only stall,slow_down   # those of some modules
    python benchmarks/rules.py DIR --fields                 # without fields of events instead

A condition stays true, and then false, while recorded runs are judged again. It wins the scripts
that are graded worse without it: fault not found, not first, other line, healthy run accused. Of
the two constants the one that costs less counts, since that one could replace the condition. Only
runs in which it took the other value are judged, and counting ends at ``--most`` scripts.
A condition that wins nothing may still protect from missing values, or make a sentence right.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from detecting.conditions import Condition, watch

# Before anything imports the detectors.
CONDITIONS = watch(["holdfast.detectors"])

from detecting.corpus import Case, choose_collections, read_collections  # noqa: E402
from detecting.running import FILE, read_trials  # noqa: E402
from detecting.score import Grade, grade  # noqa: E402
from detecting.trial import Trial, found_in  # noqa: E402
from overhead import hardware  # noqa: E402

from holdfast.detectors import ALL  # noqa: E402
from holdfast.detectors.judge import Judge  # noqa: E402
from holdfast.errors import HoldfastError, UsageError  # noqa: E402
from holdfast.report.joined_findings import join_ranks  # noqa: E402
from holdfast.report.lanes import read_lanes  # noqa: E402
from holdfast.run import LaneData, Run  # noqa: E402
from holdfast.types import Event, Finding  # noqa: E402

Field = tuple[str, str]
"""Kind of an event, and a key of its data."""

HEAD = ("rule", "instead", "wins", "loses", "other words", "fails", "runs", "scripts won")


@dataclass(frozen=True, slots=True)
class Judged:
    """How one recorded run is judged."""

    grade: Grade
    words: str
    """Everything the findings say."""
    failed: int
    """Detectors that raised an exception."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The difference that switching something off makes."""

    value: bool | None
    """The constant instead of a condition; None for a field."""
    runs: int
    worse: tuple[str, ...]
    better: tuple[str, ...]
    other: int
    """Runs whose findings read differently and are graded the same."""
    failed: int
    """Runs in which a detector failed."""

    @property
    def cost(self) -> tuple[int, int, int]:
        """To choose between two constants."""
        return self.failed, len(self.worse) - len(self.better), self.other


class Recording:
    """Recorded runs, read once and judged as often as needed."""

    def __init__(self, folder: Path, cases: Iterable[Case], trials: dict[str, Trial]) -> None:
        self._cases: dict[str, Case] = {}
        self._lanes: dict[str, list[LaneData]] = {}
        self._trials = trials
        for case in cases:
            if case.name in trials and (folder / case.name).exists():
                self._lanes[case.name] = read_lanes(Run.open(folder / case.name))
                self._cases[case.name] = case
        self._before: dict[str, Judged] = {}
        self._values: dict[str, dict[int, set[bool]]] = {}
        for name in self._cases:
            CONDITIONS.values = self._values[name] = {}
            self._before[name] = self._judge(name)
        CONDITIONS.values = {}

    def __len__(self) -> int:
        return len(self._cases)

    def without_condition(self, number: int, most: int) -> Effect:
        """Switch a condition off, with the constant that costs less."""
        effects: list[Effect] = []
        for value in (True, False):
            runs = [n for n in self._cases if (not value) in self._values[n].get(number, ())]
            CONDITIONS.forced = (number, value)
            try:
                effects.append(self._effect(runs, most, value=value))
            finally:
                CONDITIONS.forced = None
        return min(effects, key=lambda effect: effect.cost)

    def without_field(self, field: Field, most: int) -> Effect:
        """Leave a field of events out."""
        runs = [name for name in self._cases if field in set(self._fields(name))]
        return self._effect(runs, most, field=field)

    def fields(self) -> list[Field]:
        """The fields of all events that say something."""
        return sorted({field for name in self._cases for field in self._fields(name)})

    def _fields(self, name: str) -> Iterator[Field]:
        for lane in self._lanes[name]:
            for event in lane.events:
                yield from ((event.kind, key) for key, value in event.data.items() if value)

    def _effect(
        self, runs: list[str], most: int, value: bool | None = None, field: Field | None = None
    ) -> Effect:
        worse: list[str] = []
        better: list[str] = []
        other = failed = 0
        # In an order of chance: counting ends early where much is lost.
        for name in random.Random(0).sample(runs, len(runs)):
            before, now = self._before[name], self._judge_anyway(name, field)
            failed += now is None or now.failed > before.failed
            difference = _points(now.grade) - _points(before.grade) if now is not None else -1
            if difference:
                (worse if difference < 0 else better).append(name)
            elif now is not None:
                other += now.words != before.words
            if failed >= most or len(worse) - len(better) >= most:
                break
        return Effect(value, len(runs), tuple(worse), tuple(better), other, failed)

    def _judge_anyway(self, name: str, without: Field | None) -> Judged | None:
        """None where judging is not possible without a condition or a field."""
        try:
            return self._judge(name, without)
        except Exception:  # anything may happen to code that lost a condition
            return None

    def _judge(self, name: str, without: Field | None = None) -> Judged:
        found: list[tuple[str, Finding]] = []
        failed = 0
        for lane in self._lanes[name]:
            judge = Judge(ALL, rank=lane.rank)
            judge.feed(lane.steps, [_less(event, without) for event in lane.events], lane.batches)
            judge.close()
            found += [(lane.lane, finding) for finding in judge.findings]
            failed += len(judge.errors)
        groups = join_ranks(found)
        trial = replace(self._trials[name], findings=found_in(groups), known={})
        words = "\n".join(f"{f.message} {f.advice}" for _, f in found)
        return Judged(grade(self._cases[name], trial), words, failed)


def _less(event: Event, without: Field | None) -> Event:
    if without is None or event.kind != without[0]:
        return event
    return replace(event, data={k: v for k, v in event.data.items() if k != without[1]})


def _points(graded: Grade) -> int:
    """More is better; what is worth how much matters only for worse and better."""
    if graded.case.healthy:
        return -bool(graded.alarms)
    return 4 * graded.detected + 2 * graded.first + bool(graded.near) + bool(graded.exact)


def cells_of(rule: str, effect: Effect) -> list[str]:
    """One row of the table."""
    instead = "removed" if effect.value is None else str(effect.value)
    counts = (len(effect.worse), len(effect.better), effect.other, effect.failed, effect.runs)
    return [rule, instead, *map(str, counts), " ".join(effect.worse) or "-"]


def rule_of(condition: Condition) -> str:
    """Where a condition stands, and its text, for a Markdown table."""
    where = f"{condition.module.removeprefix('holdfast.detectors.')}:{condition.line}"
    return f"{where} `{condition.text.replace('|', chr(92) + '|')}`"


_recording: Recording | None = None


def _try_condition(task: tuple[int, int]) -> list[str]:
    number, most = task
    assert _recording is not None
    effect = _recording.without_condition(number, most)
    return cells_of(rule_of(CONDITIONS.known[number]), effect)


def _try_field(task: tuple[Field, int]) -> list[str]:
    field, most = task
    assert _recording is not None
    return cells_of(" ".join(field), _recording.without_field(field, most))


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("folder", metavar="DIR", type=Path, help="runs kept by detection.py")
    made.add_argument(
        "collections", metavar="COLLECTION", nargs="*", help="as for detection.py (default: all)"
    )
    made.add_argument("--only", metavar="NAMES", default="", help="modules by their names")
    made.add_argument("--fields", action="store_true", help="fields of events, not conditions")
    made.add_argument("--jobs", metavar="N", type=int, default=1, help="at a time (default: 1)")
    made.add_argument("--most", metavar="N", type=int, default=6, help="stop there (default: 6)")
    made.add_argument("--write", metavar="FILE", type=Path, help="write the table there, too")
    return made


def report(args: argparse.Namespace) -> int:
    """Judge and print, row by row."""
    global _recording
    trials = read_trials(args.folder)
    if not trials:
        raise UsageError(f"no {FILE} in {args.folder}; make one with detection.py --keep")
    cases = read_collections(choose_collections(args.collections))
    _recording = Recording(args.folder, cases, trials)
    words = [word for word in args.only.split(",") if word] or [""]
    if args.fields:
        work, todo = _try_field, [(field, args.most) for field in _recording.fields()]
    else:
        chosen = [
            number
            for number, condition in enumerate(CONDITIONS.known)
            if any(word in condition.module.removeprefix("holdfast.detectors") for word in words)
        ]
        work, todo = _try_condition, [(number, args.most) for number in chosen]
    print(f"{len(_recording)} runs, {len(todo)} rules", file=sys.stderr, flush=True)
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    print("\n".join(lines), flush=True)
    # Forked processes share the recorded runs.
    with multiprocessing.get_context("fork").Pool(args.jobs) as pool:
        for cells in pool.imap(work, todo, chunksize=4):  # pyright: ignore[reportArgumentType]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    if args.write is not None:
        head = ["# What each rule of the detectors wins", "", f"Hardware: {hardware()}"]
        head += [f"Date: {date.today()}", f"Runs judged: {len(_recording)}", ""]
        args.write.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """The command; a mistake is one line and exit code 2."""
    try:
        return report(parser().parse_args(words))
    except HoldfastError as error:
        print(f"rules.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

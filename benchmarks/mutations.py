"""Whether the default tests notice deliberate faults in the trainer and in energy_flow.

    python benchmarks/mutations.py --list
    python benchmarks/mutations.py --only resume                # themes and names with this in them
    python benchmarks/mutations.py --write                      # also into benchmarks/results/

The tracked files are copied, uncommitted changes among them. In the copy each fault in turn
replaces one text of the sources (benchmarks/mutating/catalogue.py), and the tests named beside it
run, those of ``make test`` only: none that is marked slow or gpu. First they run without any fault
and must pass. A fault that survives is a test that is missing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

from mutating.catalogue import ALL, Mutation
from mutating.copying import Copy, MutationError, Outcome
from overhead import hardware

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def table(outcomes: Iterable[Outcome]) -> list[str]:
    """Rows by theme; the first test that fails stands for all that would."""
    lines = ["| theme | fault | file | noticed by |", "|---|---|---|---|"]
    for one in outcomes:
        fault = one.mutation
        by = "**survived**" if one.caught_by is None else f"`{_short(one.caught_by)}`"
        lines.append(f"| {fault.theme} | {fault.name} | `{_file(fault.file)}` | {by} |")
    return lines


def _file(name: str) -> str:
    return name.removeprefix("models/src/holdfast_models/").removeprefix("src/holdfast/")


def _short(test: str) -> str:
    """Its file without folders, and its name."""
    file, _, name = test.partition("::")
    return f"{file.rsplit('/', 1)[-1]}::{name}" if name else file


def summary(outcomes: Sequence[Outcome]) -> str:
    """One sentence."""
    survived = sum(one.caught_by is None for one in outcomes)
    return f"{len(outcomes)} faults, {len(outcomes) - survived} noticed, {survived} survived"


def chosen(words: Sequence[str]) -> list[Mutation]:
    """The faults whose theme or name has one of the words in it; all without words."""
    found = [one for one in ALL if not words or any(w in f"{one.theme} {one.name}" for w in words)]
    if not found:
        raise MutationError(f"no fault has {' or '.join(words)} in its name; see --list")
    return found


def run(mutations: Sequence[Mutation]) -> list[Outcome]:
    """Each fault in turn, after the tests have passed without any."""
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = Copy(ROOT, Path(folder).resolve())
        began = time.monotonic()
        failing = copy.failing({test for one in mutations for test in one.tests})
        if failing:
            raise MutationError(f"without any fault these tests fail: {', '.join(failing)}")
        print(f"without any fault all tests pass, {time.monotonic() - began:.0f} s", flush=True)
        for mutation in mutations:
            began = time.monotonic()
            outcomes.append(copy.outcome(mutation))
            by = outcomes[-1].caught_by or "SURVIVED"
            print(f"{mutation.name}: {by} ({time.monotonic() - began:.0f} s)", flush=True)
    return outcomes


def page(outcomes: Sequence[Outcome]) -> str:
    """The table with its command and machine."""
    command = " ".join(shlex.quote(word) for word in sys.argv)
    return "\n".join(
        [
            "# Deliberate faults and the tests that notice them",
            "",
            f"Command: `python {command}`, one process, `OMP_NUM_THREADS=1`",
            f"Hardware: {hardware()}",
            f"Date: {date.today().isoformat()}",
            "",
            f"{summary(outcomes)}. Each fault is one text of the sources replaced",
            "by another (`benchmarks/mutating/catalogue.py`). The tests named beside it there are",
            "run, only those of `make test`; without any fault all of them pass. Shown is the",
            "first that fails.",
            "",
            *table(outcomes),
            "",
        ]
    )  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description="Which deliberate faults the default tests notice.")
    made.add_argument("--only", nargs="+", default=[], metavar="WORD", help="of themes and names")
    made.add_argument("--list", action="store_true", help="the faults, nothing is run")
    made.add_argument("--write", metavar="FILE", nargs="?", const="", help="a page of results")
    return made


def main(words: Sequence[str] | None = None) -> int:
    """The command; 1 where a fault survives, 2 on a mistake."""
    args = parser().parse_args(words)
    try:
        mutations = chosen(args.only)
        if args.list:
            print("\n".join(f"{one.theme}: {one.name}" for one in mutations))
            return 0
        outcomes = run(mutations)
    except MutationError as error:
        print(f"mutations.py: {error}", file=sys.stderr)
        return 2
    print("\n".join(["", *table(outcomes), "", summary(outcomes)]))
    if args.write is not None:
        name = args.write or f"mutations_cpu_{date.today().isoformat()}.md"
        (RESULTS / name).write_text(page(outcomes), encoding="utf-8")
    return int(any(one.caught_by is None for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())

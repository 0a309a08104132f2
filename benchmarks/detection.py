"""How much of what goes wrong is found, by code and line, and how often a healthy run is accused.

    python benchmarks/detection.py                          # all collections, about an hour
    python benchmarks/detection.py 2026-11-16 numbers       # by name or beginning, or by path
    python benchmarks/detection.py --only MEM,healthy       # some of their scripts
    python benchmarks/detection.py --keep DIR --resume      # keep run folders, go on from them
    python benchmarks/detection.py --judge DIR              # judge them again, in seconds
    python benchmarks/detection.py --judge DIR --same       # fail unless both agree

Runs the scripts of corpus/ under ``holdfast run`` and compares the findings with the answers. A
collection that has been looked into is a regression test; only first contacts say how accurate
holdfast is. The exit code is 1 when a goal is missed: 95 % detected, 90 % right code first, 75 %
exact line, 90 % within two lines, no finding above info on a healthy script.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from detecting.corpus import Case, choose, choose_collections, read_collections
from detecting.running import FILE, read_trials, run_all
from detecting.score import Grade, grades_of, scores_by_status
from detecting.table import (
    LEGEND,
    changed_lines,
    collection_lines,
    plain_of,
    result_lines,
    script_lines,
)
from detecting.trial import Trial, judge_again, try_case
from overhead import hardware

from holdfast.detectors import ALL, select
from holdfast.errors import HoldfastError, UsageError
from holdfast.run import encode

PAGE = "detection.md"


def run(cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Trial]:
    """Run the cases that have no trial yet; the trials of all of them."""
    folders = [folder for folder in (args.keep, args.write) if folder is not None]
    if args.resume and not folders:
        raise UsageError("--resume continues what --keep DIR or --write DIR has begun; give one")
    before = read_trials(folders[0]) if args.resume else {}
    todo = [case for case in cases if case.name not in before]
    kept = {case.name: args.keep / case.name for case in todo} if args.keep else {}
    for path in kept.values():
        if path.exists() and not args.resume:
            raise UsageError(f"{path} already holds a run; give --resume or another folder")
        # A run that was cut short has a folder and no trial.
        shutil.rmtree(path, ignore_errors=True)
    done = 0

    def ended(case: Case, trial: Trial) -> None:
        nonlocal done
        done += 1
        codes = " ".join(trial.codes) or "no findings"
        line = f"[{done}/{len(todo)}] {case.name}: {codes}, {trial.seconds:.0f} s"
        print(line, file=sys.stderr, flush=True)

    return before | run_all(
        todo,
        lambda case: try_case(case, kept.get(case.name)),
        jobs=args.jobs,
        folders=folders,
        ended=ended,
    )


def judge(cases: Sequence[Case], args: argparse.Namespace) -> dict[str, Trial]:
    """The kept trials of the cases, each with what the detectors find in its run folder today."""
    recorded = read_trials(args.judge)
    if not recorded:
        raise UsageError(f"no {FILE} in {args.judge}; make one with --keep {args.judge}")
    codes = [code.strip() for code in args.ignore.split(",") if code.strip()]
    detectors = select((), codes, ALL)
    judged: dict[str, Trial] = {}
    for case in cases:
        if case.name not in recorded:
            continue
        again = judge_again(recorded[case.name], args.judge / case.name, detectors)
        if again is None:
            print(f"{case.name}: its run folder cannot be read", file=sys.stderr)
        else:
            judged[case.name] = again
    return judged


def page_of(grades: Sequence[Grade], args: argparse.Namespace) -> str:
    """Everything on one page, with the machine beside the numbers."""
    words = [Path(word).name for word in args.collections]
    words += ["--only", args.only] if args.only else []
    words += ["--jobs", str(args.jobs)] if args.jobs > 1 else []
    words += ["--judge", "DIR"] if args.judge else []
    words += ["--ignore", args.ignore] if args.ignore else []
    lines = [
        "# Faults found, healthy runs left alone",
        "",
        f"Command: `{shlex.join(['python', 'benchmarks/detection.py', *words])}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        *result_lines(grades),
        "",
        *collection_lines(grades),
        "",
        LEGEND,
        "",
        *script_lines(grades),
    ]
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "collections", metavar="COLLECTION", nargs="*",
        help="names with or without date, their beginnings, or paths (default: all of corpus/)",
    )  # fmt: skip
    made.add_argument(
        "--only", metavar="WHICH", default="",
        help="scripts, codes or their beginnings, or healthy; with commas",
    )  # fmt: skip
    made.add_argument("--jobs", metavar="N", type=int, default=1, help="at a time (default: 1)")
    made.add_argument("--keep", metavar="DIR", type=Path, help="keep every run folder and trial")
    made.add_argument(
        "--write", metavar="DIR", type=Path, help="write the trials of this run and the table there"
    )
    made.add_argument(
        "--resume", action="store_true",
        help="with --keep or --write: run only what has no trial there",
    )  # fmt: skip
    made.add_argument(
        "--judge", metavar="DIR", type=Path, help="judge the kept run folders, run nothing"
    )
    made.add_argument(
        "--ignore", metavar="CODES", default="",
        help="with --judge: without these detectors; codes or their beginnings, with commas",
    )  # fmt: skip
    made.add_argument(
        "--same", action="store_true",
        help="with --judge: exit code 1 only where findings differ from those of the live run",
    )  # fmt: skip
    made.add_argument("--json", action="store_true", help="for programs")
    return made


def report(args: argparse.Namespace) -> int:
    """Run or judge, print the result."""
    if args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs} is no number of scripts; give 1 or more")
    if args.judge and (args.keep or args.resume):
        raise UsageError("--judge runs nothing; leave --keep and --resume out")
    if (args.ignore or args.same) and not args.judge:
        raise UsageError("--ignore and --same are for --judge DIR; give both")
    cases = choose(read_collections(choose_collections(args.collections)), args.only)
    trials = judge(cases, args) if args.judge else run(cases, args)
    grades = grades_of(cases, trials)
    if args.write is not None:
        args.write.mkdir(parents=True, exist_ok=True)
        (args.write / PAGE).write_text(page_of(grades, args), encoding="utf-8")
    changed = changed_lines(grades, read_trials(args.judge)) if args.judge else []
    if args.json:
        print(encode(plain_of(grades), indent=2).decode())
    else:
        print("\n".join([*script_lines(grades), "", *collection_lines(grades), ""]))
        if args.judge:
            print(f"Other findings than when recorded: {len(changed)} of {len(grades)} scripts")
            print("".join(f"  {line}\n" for line in changed))
        print("\n".join(result_lines(grades)))
    if args.same:
        return int(bool(changed))
    return int(any(score.missed for score in scores_by_status(grades)))


def main(words: Sequence[str] | None = None) -> int:
    """The command; a mistake is one line and exit code 2."""
    try:
        return report(parser().parse_args(words))
    except HoldfastError as error:
        print(f"detection.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

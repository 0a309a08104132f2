"""How much of what goes wrong is found, by code and line, and how often a healthy run is accused.

    python benchmarks/detection.py                      # everything, about half an hour
    python benchmarks/detection.py --half unseen --only MEM
    python benchmarks/detection.py --trials DIR         # keep the trials there, and go on from them
    python benchmarks/detection.py --write              # also into benchmarks/results/

The same as ``holdfast faults bench``, with the machine beside the numbers. The unseen half was
written by people who had not seen the detectors and is never changed after a failure.
"""

from __future__ import annotations

import argparse
import sys
from datetime import date
from pathlib import Path

from overhead import hardware

from holdfast.faults._bench import bench, read_trials
from holdfast.faults._catalogue import HALVES, Case, catalogue, choose
from holdfast.faults._score import grades_of, scores_of
from holdfast.faults._table import markdown_of
from holdfast.faults._trial import Trial


def show(case: Case, trial: Trial | None) -> None:
    """One line for each script that has ended."""
    if trial is not None:
        codes = " ".join(dict.fromkeys(said.code for said in trial.said)) or "nothing"
        print(f"{case.name}: {codes}, {trial.seconds:.0f} s", file=sys.stderr, flush=True)


def main() -> int:
    """Run what has no trial yet, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--trials", metavar="DIR", type=Path)
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    cases = choose(catalogue(), args.half, args.only)
    known = read_trials(args.trials) if args.trials is not None else {}
    todo = [case for case in cases if case.name not in known]
    trials = known | bench(todo, jobs=args.jobs, folder=args.trials, told=show)
    grades = grades_of(cases, trials)
    scores = scores_of(grades)
    words = ["--half", args.half] if args.half else []
    words += ["--only", args.only] if args.only else []
    lines = [
        "# Faults found, healthy runs left alone",
        "",
        f"Command: `{' '.join(['python benchmarks/detection.py', *words])}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        markdown_of(grades, scores),
    ]
    table = "\n".join(lines)
    print(table)
    if args.write:
        (Path(args.write) / f"detection_cpu_{date.today()}.md").write_text(table)
    return int(any(score.missed for score in scores))


if __name__ == "__main__":
    sys.exit(main())

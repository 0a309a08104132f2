"""Drills: what is done to a run, how often it was survived, what was lost, what went untold.

    python benchmarks/drills.py                    # all of them: some fifteen minutes on two cores
    python benchmarks/drills.py --quick            # a few of each
    python benchmarks/drills.py --only "kill -9"   # one of them
    python benchmarks/drills.py --write            # also into benchmarks/results/

The exit code is 1 when anything was lost or went wrong in silence.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from drilling import (
    clocks,
    flips,
    hangs,
    kills,
    memory,
    places,
    ranks,
    samples,
    spikes,
    storms,
    workers,
)
from drilling.score import Progress, Score, counter
from overhead import hardware

Drill = Callable[[bool, int, Progress], Score]

# Some of the ways in which a folder cannot be written; all of them otherwise.
_QUICK_FOLDERS = ("becomes a file, watched", "the run folder is a file, watched")

DRILLS: dict[str, Drill] = {
    "kill -9": lambda quick, seed, show: kills.drill(1 if quick else 200, seed=seed, show=show),
    "bit flips": lambda quick, seed, show: flips.drill(4 if quick else 100, seed=seed, show=show),
    "disk full": lambda quick, seed, show: places.full_disk(
        1 if quick else 20, seed=seed, show=show
    ),
    "read-only folder": lambda quick, seed, show: places.read_only(
        _QUICK_FOLDERS if quick else (), show=show
    ),
    "dead worker": lambda quick, seed, show: workers.drill(
        1 if quick else 12, seed=seed, show=show
    ),
    "NaN storms": lambda quick, seed, show: storms.drill(1 if quick else 12, seed=seed, show=show),
    "bad samples": lambda quick, seed, show: samples.drill(1 if quick else 8, seed=seed, show=show),
    "out of memory": lambda quick, seed, show: memory.drill(
        1 if quick else 10, seed=seed, show=show
    ),
    "hang": lambda quick, seed, show: hangs.drill(1 if quick else 12, seed=seed, show=show),
    "clock jumps": lambda quick, seed, show: clocks.drill(1 if quick else 6, seed=seed, show=show),
    "ranks": lambda quick, seed, show: ranks.drill(1 if quick else 24, seed=seed, show=show),
    "spikes": lambda quick, seed, show: spikes.drill(1 if quick else 12, seed=seed, show=show),
}
"""By name: ``DRILLS[name](quick, seed, show)``."""


def table(scores: Sequence[Score]) -> list[str]:
    """The table, what counts below it, then everything that was not survived."""
    lines = ["| drill | tried | survived | lost | silent |", "|---|---|---|---|---|"]
    for s in scores:
        lines.append(
            f"| {s.name} | {len(s.tries)} | {s.survived} | {len(s.lost)} | {len(s.silent)} |"
        )
    lines += ["", "Silent: it went wrong and no event, finding or line told of it.", ""]
    lines += [f"- **{s.name}**: {s.means}." for s in scores]
    notes = [note for s in scores for note in s.notes]
    problems = [" ".join(problem.split()) for s in scores for problem in s.problems()]
    for title, found in (("Seen:", notes), ("Not survived:", problems)):
        if found:
            lines += ["", title, "", *(f"- {one}" for one in found)]
    return lines


def main() -> int:
    """Run the drills and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=list(DRILLS), metavar="NAME")
    parser.add_argument("--quick", action="store_true", help="a few of each")
    parser.add_argument("--seed", type=int, default=0, help="of the random instants")
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    began = time.monotonic()
    names = args.only or list(DRILLS)
    scores = [DRILLS[name](args.quick, args.seed, counter) for name in names]
    options = [f"--only '{name}'" for name in args.only or ()] + ["--quick"] * args.quick
    options += [f"--seed {args.seed}"] * bool(args.seed)
    lines = [
        "# Drills",
        "",
        f"Command: `{' '.join(['python benchmarks/drills.py', *options])}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}; {(time.monotonic() - began) / 60:.0f} minutes",
        "",
        *table(scores),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.write:
        (Path(args.write) / f"drills_cpu_{date.today()}.md").write_text(text)
    return int(any(s.lost or s.silent for s in scores))


if __name__ == "__main__":
    sys.exit(main())

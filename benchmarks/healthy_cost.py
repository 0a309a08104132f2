"""What the guard takes of the first seconds of healthy scripts, by CPU time of their process.

    python benchmarks/healthy_cost.py                     # every healthy script of all collections
    python benchmarks/healthy_cost.py 48 --seconds 2      # so many, evenly from all collections
    python benchmarks/healthy_cost.py policy_gradient --before ../older/src --runs 3

A plain run trains for so many CPU seconds from its first optimizer on, or to its last line, and
notes its steps; guarded runs end at the same step. Where a script is cut short its share is an
upper bound: what is looked at once, in the first steps, weighs most there. ``--before`` measures
an older state of the sources beside, in the same minutes. All kinds of a script follow each other,
``--runs`` times by turns, of which the shortest counts: processors of shared machines are slower
for seconds. ``noise`` is a second plain run over the first.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from costing.healthy import choose_scripts
from costing.whole import command, environment
from detecting.corpus import Case

SRC = Path(__file__).parents[1] / "src"
_PATIENCE = 120.0
"""Seconds on the clock for one run: some scripts make data for minutes before they train."""
CLOCK = Path(__file__).parent / "costing" / "clock.py"
_SITE = """
import os
if os.environ.get("HEALTHY_CLOCK") and (os.environ.get("HOLDFAST_RUN") or {plain}):
    exec(compile(open({path!r}).read(), "<clock>", "exec"), {{"__name__": "clock"}})
"""


def run(case: Case, src: Path | None, seconds: float, steps: int = 0) -> tuple[float, int, bool]:
    """CPU seconds, steps, and whether it was cut short; ``src`` is None for a plain run."""
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        site.mkdir()
        (site / "sitecustomize.py").write_text(_SITE.format(plain=src is None, path=str(CLOCK)))
        marks = Path(folder, "marks")
        process = subprocess.Popen(
            command("guarded" if src else "plain", [str(case.path)], folder),
            env=environment()
            | {
                "PYTHONPATH": os.pathsep.join([str(site), *([str(src)] if src else [])]),
                "HEALTHY_CLOCK": f"{marks} {seconds} {steps}",
                "HOLDFAST_PLUGINS": "none",
            },
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the script, too, which is a child of ours
            process.wait()
        if not marks.exists():
            return 0.0, 0, False
        spent, counted, cut = marks.read_text().split()
        return float(spent), int(counted), cut == "1"


def compare(case: Case, kinds: dict[str, Path | None], seconds: float, runs: int) -> str:
    """A line of the table; what is added stands in percent of plain."""
    first, steps, cut = run(case, None, seconds)
    if not first:
        return f"| {case.name} | not measured: it fails, has no optimizer, or takes too long |"
    plain, spent = [first], {name: list[float]() for name in kinds}
    for turn in range(runs):
        if turn:
            plain.append(run(case, None, seconds, steps if cut else 0)[0])
        for name, src in kinds.items():
            spent[name].append(run(case, src, seconds, steps if cut else 0)[0])
    reported = f"| {case.name} | {steps}{' of more' if cut else ''} | {min(plain):.2f}"
    return (
        f"{reported} | {' | '.join(f'{min(s) / min(plain) - 1.0:+.1%}' for s in spent.values())} |"
    )


def closing(lines: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """How what is added is spread over the scripts, for each kind of run."""
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines]
    rows = [row for row in rows if len(row) == 3 + len(kinds)]
    reported = [""]
    for place, kind in enumerate(kinds):
        more = sorted((float(row[3 + place].rstrip("%")), row[0]) for row in rows)
        if more:
            shares = [share for share, _ in more]
            nine = shares[max(0, -(-9 * len(shares) // 10) - 1)]
            worst = ", ".join(f"{name.split('/')[1]} {share:+.0f}" for share, name in more[-10:])
            reported.append(
                f"{kind}: {len(shares)} scripts, median {statistics.median(shares):+.1f} %, "
                f"nine in ten at most {nine:+.1f} %; the ten worst: {worst}."
            )
    return reported


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", default=["1000"], help="how many, or their names")
    parser.add_argument("--seconds", type=float, default=4.0, help="of plain training at most")
    parser.add_argument("--runs", type=int, default=1, help="of each kind, the shortest counts")
    parser.add_argument("--before", type=Path, help="the src folder of an older state")
    args = parser.parse_args()
    kinds: dict[str, Path | None] = {"noise": None}
    if args.before:
        kinds["before"] = args.before.resolve()
    kinds["now"] = SRC
    print(f"| script | steps | plain s | {' | '.join(kinds)} |")
    print("|---|---|---|" + "---|" * len(kinds), flush=True)
    lines: list[str] = []
    for case in choose_scripts(args.scripts):
        lines.append(compare(case, kinds, args.seconds, args.runs))
        print(lines[-1], flush=True)
    print("\n".join(closing(lines, list(kinds))))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()

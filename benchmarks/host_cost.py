"""Host time that the guard takes: per steady step and by part, and in whole short runs.

    python benchmarks/host_cost.py                          # every row this machine can run
    python benchmarks/host_cost.py --rows loop scaler-clip --blocks 12
    python benchmarks/host_cost.py --together --blocks 12   # in one process: less time on a GPU
    python benchmarks/host_cost.py --whole --rows loop lightning   # wall against wall
    python benchmarks/host_cost.py --healthy 12             # so many healthy scripts of the corpus
    python benchmarks/host_cost.py --healthy reinforce_pole amp_scaler
    python benchmarks/host_cost.py --quick --write          # also into benchmarks/results/

Steady steps: every row is a process under ``holdfast run``, in which blocks of plain, plain again
and guarded steps alternate. ``added`` is the median over rounds of a guarded block less the plain
ones of its round, in microseconds per step (of CPU time where there is no GPU), with the bounds
between which such a median is in nine measurements of ten; ``again`` is the same of plain less
plain, which would be 0 on a machine at rest, and ``cpu`` of CPU time of the whole process. ``mean``
has bursts of other work and what is seldom done in it. Parts are measured apart, with timers around
the guard's methods. What is missing to ``added`` is torch's calling of hooks, and caches that we
have emptied; less than the parts is added where the guard spares a part of torch.

Whole runs: ``python SCRIPT`` against ``holdfast run SCRIPT`` by turns, in start, steady and end.
Healthy scripts: the same of the corpus, from their first optimizer to their last line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

from costing import healthy, rows, steady, whole
from costing.parts import PARTS
from costing.rows import ROWS, Row
from costing.steady import Steady
from overhead import hardware

_RESULT = "RESULT "
WHOLE = ("loop", "scaler-clip", "lightning", "transformers", "compiled-amp")
"""Whole runs by default: those that a user complains about."""


def measure_here(names: Sequence[str], blocks: int, steps: int) -> None:
    """Under ``holdfast run``: time rows and hand the figures to the parent."""
    from holdfast.boot import session

    for name in names:
        found = steady.measure(rows.find(name), blocks, steps, session._make_engine)
        print(_RESULT + json.dumps(asdict(found)), flush=True)
        if name != names[-1]:
            session._make_engine()


def steady_rows(chosen: Sequence[Row], blocks: int, steps: int) -> Iterator[Steady]:
    """Measure rows in a process of their own; ends early where it does."""
    with tempfile.TemporaryDirectory() as folder:
        command = whole.command(
            "guarded", [sys.argv[0], "--row", *(x.name for x in chosen)], folder
        )
        command += ["--blocks", str(blocks), "--steps", str(steps)]
        with subprocess.Popen(
            command, env=whole.environment(), stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            for said in process.stdout:
                if said.startswith(_RESULT):
                    yield Steady.read(json.loads(said.removeprefix(_RESULT)))
                elif said.startswith("parts.PARTS"):
                    print(said, file=sys.stderr)


def steady_table(chosen: Sequence[Row], blocks: int, steps: int, *, together: bool) -> list[str]:
    """The table of steady steps, printed as it grows."""
    lines = [
        "## Steady steps",
        "",
        f"{blocks} blocks of {steps} steps of each variant; microseconds per step.",
        "",
        "| row | what | plain | added | again | cpu | mean | ratio | until steady s "
        f"| {' | '.join(PARTS)} | all parts |",
        "|---" * 9 + "|" + "---|" * (len(PARTS) + 1),
    ]
    print("\n".join(lines), flush=True)

    def add(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    here = [row for row in chosen if not row.missing]
    missed = {row.name: row for row in chosen}
    for some in [here] if together else [[row] for row in here]:
        for found in steady_rows(some, blocks, steps):
            add(_steady_line(missed.pop(found.row), found))
    for row in missed.values():
        why = row.missing or "its process ended without a result; see above"
        add(f"| {row.name} | {row.what} | not measured: {why} |")
    return lines


def _steady_line(row: Row, found: Steady) -> str:
    parts = " | ".join(f"{found.parts.get(part, 0.0):.1f}" for part in PARTS)
    return (
        f"| {row.name} | {row.what} | {found.plain:.0f} | **{found.added:.0f}** "
        f"| {found.again:.0f} | {found.cpu:.0f} | {found.mean:.0f} | {found.ratio:.3f} "
        f"| {found.until:.2f} | {parts} | {sum(found.parts.values()):.0f} |"
    )


def whole_table(chosen: Sequence[Row], steps: int, repeats: int) -> list[str]:
    """The table of whole runs, printed as it grows."""
    lines = [
        "## Whole runs",
        "",
        f"{steps} steps, {repeats} runs of each kind by turns, medians; `+`: guarded less plain. "
        "Start: until the first step is over. CPU start and steady: of the script's process; CPU: "
        "of all processes.",
        "",
        *whole.HEAD,
    ]
    print("\n".join(lines), flush=True)
    for row in chosen:
        if row.missing:
            lines.append(f"| {row.name} | not measured: {row.missing} |")
        else:
            lines.append(whole.line(row, whole.compare(row, steps, repeats)))
        print(lines[-1], flush=True)
    return lines


def parse() -> argparse.Namespace:
    """Options of the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=known, metavar="ROW", help=", ".join(known))
    parser.add_argument("--blocks", type=int, help="blocks of each variant, or runs of each kind")
    parser.add_argument("--steps", type=int, help="steps of a block, or of a whole run")
    parser.add_argument("--quick", action="store_true", help="fewer blocks and runs")
    parser.add_argument("--together", action="store_true", help="all rows in one process")
    parser.add_argument("--whole", action="store_true", help="whole runs instead of steady steps")
    parser.add_argument(
        "--healthy",
        nargs="+",
        metavar="N|SCRIPT",
        help="healthy scripts of the corpus instead: so many, or by name",
    )
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    parser.add_argument("--row", nargs="+", help=argparse.SUPPRESS)
    for ours in ("--train", "--script", "--marks"):
        parser.add_argument(ours, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print and write; or be one of the processes that are measured."""
    args = parse()
    if args.train:
        whole.train(rows.find(args.train), args.steps, args.marks)
        return 0
    if args.script:
        healthy.be_script(args.script, args.marks)
        return 0
    if args.row:
        measure_here(args.row, args.blocks, args.steps)
        return 0
    chosen = [rows.find(name) for name in args.rows] if args.rows else list(ROWS)
    head = [
        "# Host time of the guard",
        "",
        f"Command: `python benchmarks/host_cost.py {' '.join(sys.argv[1:])}`".rstrip(),
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
    ]
    print("\n".join(head), flush=True)
    if args.healthy:
        table = healthy.table(args.healthy, args.blocks or 2)
    elif args.whole:
        chosen = [row for row in chosen if args.rows or row.name in WHOLE]
        table = whole_table(chosen, args.steps or 250, args.blocks or (2 if args.quick else 5))
    else:
        blocks = args.blocks or (6 if args.quick else 20)
        table = steady_table(chosen, blocks, args.steps or 24, together=args.together)
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        Path(args.write).mkdir(parents=True, exist_ok=True)
        path = Path(args.write) / f"host_cost_{place}_{date.today()}.md"
        with path.open("a" if path.exists() else "w", encoding="utf-8") as file:
            file.write("\n".join([*head, *table, ""]) + "\n")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())

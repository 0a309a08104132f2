"""What saving costs a whole run, from its first steps on: guard, snapshots, checkpoints.

    python benchmarks/whole_run.py --workload gpt124m-fused --steps 300
    python benchmarks/whole_run.py --write            # also into benchmarks/results/

Every row is a process under ``holdfast run`` with other settings. In each, plain steps (every patch
taken out) go before and after the guarded ones, and means over all steps are compared: the room
for snapshots, which is made at the beginning, and every snapshot are in them. The last row writes
checkpoints far more often than the default of every ten minutes; what one of them costs is the
difference to the row before, divided by their number.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from overhead import guard, hardware, synchronize
from workloads import WORKLOADS, nothing

_FIRST = 8
ROWS = {
    "guard alone": ["--no-rollback", "--checkpoint-minutes", "0"],
    "default": [],
    "a checkpoint every 6 s": ["--checkpoint-minutes", "0.1"],
}


def run(name: str, guarded: bool, steps: int) -> dict[str, float]:
    """Mean and longest time of a step, in milliseconds."""
    guard(guarded)
    torch.manual_seed(0)
    step = next(w for w in WORKLOADS if w.name == name).make(nothing, False)
    for _ in range(_FIRST):
        step()
    synchronize()
    marks = [time.perf_counter()]
    for _ in range(steps):
        step()
        marks.append(time.perf_counter())
    synchronize()
    total = time.perf_counter() - marks[0]
    longest = max(after - before for before, after in itertools.pairwise(marks))
    del step
    gc.collect()
    return {"mean": 1e3 * total / steps, "longest": 1e3 * longest}


def measure(name: str, steps: int) -> None:
    """In one process: plain, guarded, plain."""
    before = run(name, False, steps // 2)
    guarded = run(name, True, steps)
    after = run(name, False, steps // 2)
    plain = (before["mean"] + after["mean"]) / 2
    found = {"plain": plain, **guarded, "ratio": guarded["mean"] / plain}
    print("RESULT " + json.dumps(found), flush=True)


def row(title: str, args: argparse.Namespace) -> str:
    """Start a process and make a line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        under = [sys.executable, "-m", "holdfast", "run", "--quiet", "--run-dir", f"{folder}/run"]
        command = [*under, *ROWS[title], sys.argv[0], "--workload", args.workload]
        command += ["--steps", str(args.steps)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        results = [x for x in done.stdout.splitlines() if x.startswith("RESULT ")]
        if not results:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        got = json.loads(results[0].removeprefix("RESULT "))
        saved = len(list(Path(folder, "run").rglob("step-*.json")))
        events = Path(folder, "run", "events.r0.jsonl").read_text().splitlines()
        written = sum(json.loads(e)["kind"] == "checkpoint" for e in events)
    return (
        f"| {title} | {got['plain']:.3f} | {got['mean']:.3f} | {got['ratio']:.4f} | "
        f"{got['longest']:.1f} | {written} written, {saved} kept |"
    )


def main() -> int:
    """Print the table, or measure where a row has started this."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    here = "gpt124m-fused" if torch.cuda.is_available() else "cpu-medium"
    parser.add_argument("--workload", default=here, choices=[w.name for w in WORKLOADS])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--row", choices=ROWS, action="append", help="these only")
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    if "HOLDFAST_RUN" in os.environ:
        measure(args.workload, args.steps)
        return 0
    lines = [
        "# Saving, in whole runs",
        "",
        "Command: `python benchmarks/whole_run.py "
        f"--workload {args.workload} --steps {args.steps}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        "| settings | plain ms | mean ms | ratio | longest step ms | checkpoints |",
        "|---|---|---|---|---|---|",
    ]
    for title in args.row or ROWS:
        lines.append(row(title, args))
        print(lines[-1], flush=True)
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        Path(args.write).mkdir(parents=True, exist_ok=True)
        path = Path(args.write) / f"whole_run_{place}_{date.today()}.md"
        path.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

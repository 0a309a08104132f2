"""What becomes of runs that spike, and of noisy ones that are fine: blind scripts, three ways.

    python benchmarks/recovery.py                  # the tables
    python benchmarks/recovery.py --write          # also into benchmarks/results/
    python benchmarks/recovery.py --set guard.device_path=true       # the way a GPU goes

The scripts and what is true about them were written by someone who had not seen the guard; see
answers.json beside them in corpus/2026-11-15-spikes and corpus/2026-11-15-noisy. A spiking script
is run as it is, without its fault (CLEAN=1), and under holdfast.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from overhead import hardware

from holdfast.run import LaneReader, Run

CORPUS = Path(__file__).parents[1] / "corpus"
SPIKES, NOISY = CORPUS / "2026-11-15-spikes", CORPUS / "2026-11-15-noisy"


@dataclass(frozen=True)
class Fate:
    """What one guarded run came to."""

    final: float | None
    code: int
    first_skip: int | None
    skipped: int
    rollbacks: int
    trials: int
    worst: str
    codes: str
    errors: int


def truths_of(folder: Path) -> dict[str, dict[str, Any]]:
    """What is true about the scripts of a folder, by name."""
    answers = json.loads((folder / "answers.json").read_text())
    return {answer["script"]: answer for answer in answers}


def final_of(out: str) -> float | None:
    """The number a script prints last."""
    words = out.split()
    return float(words[-1]) if len(words) > 1 and words[-2] == "final" else None


def plainly(script: Path, **variables: str) -> float | None:
    """Run a script under python."""
    done = subprocess.run(
        [sys.executable, script.name],
        cwd=script.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return final_of(done.stdout)


def guarded(script: Path, options: list[str]) -> Fate:
    """Run a script under holdfast and read what was recorded."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "holdfast", "run", "--quiet", "--run-dir", str(run)]
        done = subprocess.run(
            [*command, *options, script.name],
            cwd=script.parent,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        record = Run.open(run)
        reader = LaneReader(record, record.lanes()[0])
        rows, findings = reader.steps(), reader.findings()
        kinds = [event.kind for event in reader.events()]
        skipped = rows["step"][rows["skipped"] > 0]
        worst = max((f.severity for f in findings), default=None)
        return Fate(
            final=final_of(done.stdout),
            code=done.returncode,
            first_skip=int(skipped[0]) if len(skipped) else None,
            skipped=len(skipped),
            rollbacks=kinds.count("rollback"),
            trials=kinds.count("trial"),
            worst=worst.name.lower() if worst is not None else "-",
            codes=" ".join(sorted({f.code for f in findings})),
            errors=kinds.count("holdfast_error"),
        )


def shown(value: float | None) -> str:
    """A number, or a dash."""
    return "-" if value is None else f"{value:.4g}"


def spikes(jobs: int, options: list[str]) -> list[str]:
    """The table of runs that spike."""
    truths = truths_of(SPIKES)
    paths = [SPIKES / name for name in truths]
    with ThreadPoolExecutor(jobs) as pool:
        clean = list(pool.map(lambda p: plainly(p, CLEAN="1"), paths))
        plain = list(pool.map(plainly, paths))
        fates = list(pool.map(lambda p: guarded(p, options), paths))
    lines = [
        "| script | kind | bad steps | clean | python | holdfast | off clean | first skip "
        "| skipped | rolled back | findings | exit |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for path, good, bad, fate in zip(paths, clean, plain, fates, strict=True):
        truth = truths[path.name]
        off = "-" if fate.final is None or not good else f"{fate.final / good - 1:+.1%}"
        lines.append(
            f"| {path.name} | {truth['kind']} | {truth['first_step']} to "
            f"{truth['last_step']} | {shown(good)} | {shown(bad)} | {shown(fate.final)} "
            f"| {off} | {fate.first_skip if fate.first_skip is not None else '-'} | {fate.skipped} "
            f"| {fate.rollbacks} | {fate.codes or '-'} ({fate.worst}) | {fate.code} |"
        )
    return lines


def noisy(jobs: int, options: list[str]) -> list[str]:
    """The table of runs that are fine."""
    truths = truths_of(NOISY)
    paths = [NOISY / name for name in truths]
    with ThreadPoolExecutor(jobs) as pool:
        plain = list(pool.map(plainly, paths))
        fates = list(pool.map(lambda p: guarded(p, options), paths))
    lines = [
        "| script | python | holdfast | skipped | rolled back | trials undone | findings |",
        "|---|---|---|---|---|---|---|",
    ]
    for path, good, fate in zip(paths, plain, fates, strict=True):
        lines.append(
            f"| {path.name} | {shown(good)} | {shown(fate.final)} | {fate.skipped} "
            f"| {fate.rollbacks} | {fate.trials} | {fate.codes or '-'} ({fate.worst}) |"
        )
    return lines


def main() -> int:
    """Run everything, print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    options = [word for setting in args.set for word in ("--set", setting)]
    lines = [
        "# Runs that spike, and noisy ones that are fine",
        "",
        f"Command: `{' '.join(['python benchmarks/recovery.py', *options])}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        "`clean` is the loss on clean held-out data of the script without its fault, `python` that "
        "of the script as it is, `off clean` how far the guarded run is from clean. Data of a "
        "window that is left out is lost: a clean run has seen that many more batches.",
        "",
        *spikes(args.jobs, options),
        "",
        *noisy(args.jobs, options),
    ]
    table = "\n".join(lines) + "\n"
    print(table)
    if args.write:
        kind = "device_path" if any("device_path" in s for s in args.set) else "cpu"
        (Path(args.write) / f"recovery_{kind}_{date.today()}.md").write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

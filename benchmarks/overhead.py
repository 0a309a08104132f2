"""What the guard costs: guarded over plain, interleaved in one process, as a ratio.

    python benchmarks/overhead.py                    # every workload this machine can run
    python benchmarks/overhead.py --workload gpt124m-fused --blocks 12 --steps 20
    python benchmarks/overhead.py --write            # also into benchmarks/results/

Runs itself under ``holdfast run``, so that the parent drains the ring as it does for a user.
Plain blocks have every patch and hook taken out. Blocks of all variants alternate. ``paired`` is
the median over rounds of a block's time divided by that of the plain block of its round, which a
machine that is slower for a second does not move, with the bounds between which such a median is in
nine measurements of ten; ``quartiles`` compares lower quartiles over all rounds. ``again`` is plain
a second time: how far it is from one is what the figures beside it are worth. The spread is that of
the quartiles within a variant. Host syncs are those that ``torch.cuda.set_sync_debug_mode("warn")``
reports, per step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from operator import truediv
from pathlib import Path

import torch
from costing.paired import Paired
from workloads import CHECKS, WORKLOADS, Step, Workload, nothing

# Steps after a switch that are not timed: the guard takes its full path, then a shorter one.
_AFTER_SWITCH = 8
_COUNTED = 16


@dataclass(frozen=True)
class Result:
    """One variant of a workload beside its plain form."""

    workload: str
    variant: str
    plain_ms: float
    ms: float
    paired: Paired
    quartiles: float
    mean: float
    spread: float
    syncs: float | None
    blocks: int
    steps: int


def measure(workload: Workload, blocks: int, steps: int, rivals: bool) -> list[Result]:
    """Alternate blocks of every variant and compare them with plain ones."""
    make: dict[str, Callable[[], Step]] = {
        "plain": partial(workload.make, nothing, False),
        "again": partial(workload.make, nothing, False),
        "holdfast": partial(workload.make, nothing, False),
    }
    if rivals and workload.rivals:
        for name, check in CHECKS.items():
            make[name] = partial(workload.make, check, False)
        make["anomaly"] = partial(workload.make, nothing, True)
    step: dict[str, Step] = {}
    times: dict[str, list[float]] = {name: [] for name in make}
    for name in make:
        guard(name == "holdfast")
        torch.manual_seed(0)
        step[name] = make[name]()
        _warm(step[name], guarded=name == "holdfast")
    order = list(make)
    for block in range(blocks):
        for name in order if block % 2 else reversed(order):
            guard(name == "holdfast")
            for _ in range(_AFTER_SWITCH):
                step[name]()
            synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                step[name]()
            synchronize()
            times[name].append((time.perf_counter() - began) / steps * 1e3)
    quartiles = {k: statistics.quantiles(v, n=4) for k, v in times.items()}
    results = [
        Result(
            workload=workload.name,
            variant=name,
            plain_ms=quartiles["plain"][0],
            ms=quartiles[name][0],
            paired=Paired.of(map(truediv, times[name], times["plain"])),
            quartiles=quartiles[name][0] / quartiles["plain"][0],
            mean=statistics.mean(times[name]) / statistics.mean(times["plain"]),
            spread=quartiles[name][2] / quartiles[name][0],
            syncs=_syncs(step[name], name == "holdfast"),
            blocks=blocks,
            steps=steps,
        )
        for name in make
    ]
    guard(True)
    return results


def _warm(step: Step, *, guarded: bool) -> None:
    """Past the steps that the guard looks at closely, or past its snapshots' first place."""
    until = time.perf_counter() + 3.0
    for i in range(300 if guarded else 30):
        if i >= 64 and time.perf_counter() > until:
            break
        step()
    synchronize()


def guard(on: bool) -> None:
    from holdfast.boot import patches, session

    patches.uninstall()
    if on:
        patches.install(session._asked)  # as a run does


def _syncs(step: Step, guarded: bool) -> float | None:
    """Host syncs per step as torch sees them; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    guard(guarded)
    synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(_COUNTED):
                step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA" in str(w.message) for w in seen) / _COUNTED


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def hardware() -> str:
    """The machine in a few words."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{device}, {os.cpu_count()} cores, {versions}"


def markdown(results: list[Result], command: str) -> str:
    """The table that is committed."""
    lines = [
        "# Guard overhead",
        "",
        f"Command: `{command}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        "`plain` is the same loop without anything, `again` the same once more: how far that is",
        "from 1 is what the figures beside it are worth. Milliseconds are lower quartiles of",
        "interleaved blocks. `paired`: median of a block over the plain block of its round, with",
        "bounds of nine measurements in ten; `quartiles`: of the lower quartiles; the mean of all",
        "blocks has the snapshots in it, which not every block meets, and noise.",
        "`tiny-graph` replays a captured step, which no hook can guard: the run says so.",
        "",
        "| workload | variant | plain ms | ms | paired | quartiles | mean | spread | syncs per "
        "step | blocks |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        syncs = "-" if r.syncs is None else f"{r.syncs:g}"
        lines.append(
            f"| {r.workload} | {r.variant} | {r.plain_ms:.3f} | {r.ms:.3f} | {r.paired:.4f} "
            f"| {r.quartiles:.4f} | {r.mean:.4f} | {r.spread:.3f} | {syncs} "
            f"| {r.blocks} x {r.steps} steps |"
        )
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """Options of the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", action="append", help="prefix of the workloads to run")
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-rivals", action="store_true", help="plain and holdfast only")
    parser.add_argument(
        "--no-saving", action="store_true", help="the guard alone: no snapshots, no checkpoints"
    )
    parser.add_argument(
        "--no-watchers", action="store_true", help="without what watches memory and time"
    )
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    return parser.parse_args()


def main() -> int:
    """Start over under holdfast, or measure when already there."""
    args = parse()
    if "HOLDFAST_RUN" not in os.environ:
        with tempfile.TemporaryDirectory() as folder:
            under = [sys.executable, "-m", "holdfast", "run", "--quiet"]
            under += ["--run-dir", f"{folder}/run"]
            under += ["--no-rollback", "--checkpoint-minutes", "0"] if args.no_saving else []
            under += ["--no-watchers"] if args.no_watchers else []
            return subprocess.run([*under, *sys.argv], check=False).returncode
    results: list[Result] = []
    for workload in WORKLOADS:
        wanted = not args.workload or any(workload.name.startswith(w) for w in args.workload)
        if wanted and (torch.cuda.is_available() or not workload.needs_cuda):
            results += measure(workload, args.blocks, args.steps, not args.no_rivals)
            for result in (r for r in results if r.workload == workload.name):
                print(json.dumps(asdict(result)), flush=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
    options = sys.argv[1 : sys.argv.index("--write")] if args.write else sys.argv[1:]
    table = markdown(results, " ".join(["python benchmarks/overhead.py", *options]))
    print(table)
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        Path(args.write).mkdir(parents=True, exist_ok=True)
        what = "guard_alone" if args.no_saving else "overhead"
        (Path(args.write) / f"{what}_{place}_{date.today()}.md").write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

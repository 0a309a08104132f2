"""Where the guard's host time goes: microseconds per step in each of its parts, measured in place.

    python benchmarks/guard_profile.py --workload tiny-fused
    python benchmarks/guard_profile.py --workload cpu-small --write

One part is timed per run of the loop, so that the timers do not add up in each other. Parts that
call others contain them. What is missing to the whole is torch's own calling of the hooks, the
fused optimizer's looking at ``found_inf``, and caches that we have emptied.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import torch
from overhead import hardware
from workloads import WORKLOADS, Step, nothing

from holdfast.boot import patches, session
from holdfast.config import Settings
from holdfast.guard.engine import Engine
from holdfast.guard.optimizer_guard import OptimizerGuard
from holdfast.guard.step_writer import StepWriter
from holdfast.probes._norm_kernel import NormKernel
from holdfast.probes.gradients import Meter
from holdfast.run import Table

PARTS: list[tuple[Any, str, str]] = [
    (Engine, "backward_begins", "the loss is noted"),
    (Engine, "backward_ends", "backward is over"),
    (Engine, "step_begins", "everything before the step"),
    (OptimizerGuard, "before", "  gradients gathered, measured, skip armed"),
    (Meter, "measure", "    measured"),
    (NormKernel, "measure", "      the launch"),
    (Engine, "step_ends", "everything after the step"),
    (StepWriter, "_arrived", "  numbers read and written"),
]


class Nowhere:
    """A recorder that throws everything away: the ring has its own tests."""

    rank = 0
    ring = property(lambda self: self)

    def put(self, kind: int, payload: bytes) -> bool:
        """Accept a record."""
        return True

    def event(self, kind: str, step: int, data: Any) -> None:
        """Accept an event."""

    batch = close = lambda self, *data: None

    def table(self, name: str, columns: Any) -> Table:
        """A table like any other."""
        return Table(self, 16, columns)  # type: ignore[arg-type]


def loop(step: Step, count: int) -> float:
    """Microseconds per step."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(count):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / count * 1e6


def timed(owner: Any, name: str, step: Step, count: int) -> float:
    """Microseconds per step spent in one method."""
    original = owner.__dict__[name]
    spent: list[int] = []

    def timer(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter_ns()
        try:
            return original(*args, **kwargs)
        finally:
            spent.append(time.perf_counter_ns() - began)

    setattr(owner, name, timer)
    try:
        loop(step, count)
    finally:
        setattr(owner, name, original)
    return sum(spent) / count / 1e3


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="cpu-small", choices=[w.name for w in WORKLOADS])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    workload = next(w for w in WORKLOADS if w.name == args.workload)
    session._engine = Engine(Settings(), lambda: Nowhere())  # type: ignore[arg-type,return-value]
    patches.install(session.current)
    step = workload.make(nothing, False)
    loop(step, 200)
    plain: list[float] = []
    guarded: list[float] = []
    for block in range(40):
        for times in (plain, guarded) if block % 2 else (guarded, plain):
            patches.uninstall()
            if times is guarded:
                patches.install(session.current)
            loop(step, 3)
            times.append(loop(step, 25))
    patches.uninstall()
    patches.install(session.current)
    one, other = statistics.quantiles(plain, n=4)[0], statistics.quantiles(guarded, n=4)[0]
    lines = [
        f"# Where the guard's time goes: {workload.name}",
        "",
        f"Command: `python benchmarks/guard_profile.py --workload {workload.name}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        f"Plain step {one:.0f} µs, guarded {other:.0f} µs: {other - one:.0f} µs more.",
        "",
        "| part | µs per step |",
        "|---|---|",
    ]
    for owner, name, what in PARTS:
        shown = what.replace("  ", "&nbsp;&nbsp;")
        spent = timed(owner, name, step, args.steps)
        if spent:
            lines.append(f"| {shown} | {spent:.1f} |")
    table = "\n".join(lines) + "\n"
    print(table)
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        name = f"profile_{workload.name}_{place}_{date.today()}.md"
        (Path(args.write) / name).write_text(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How fast energy_flow trains: whole steps, with the guard on, beside a slow reference.

    python benchmarks/energy_flow.py                      # every row this machine can run
    python benchmarks/energy_flow.py --row exp50/16 --row exp50/64 --seconds 4
    python benchmarks/energy_flow.py --write              # also into benchmarks/results/

A step is forward, loss, backward of every micro-batch, clipping and fused AdamW in bf16, under
``holdfast.watch`` as a user has it. Rows "as shipped" are a preset with nothing changed: text
bridge, early stop and accumulation as they are set. The others are the core alone: all flows, all
lattice steps, text bridge and early stop off. Times are CUDA events read after the last step. Busy
is the time of a step's kernels (a profiler's window of 5 steps) over its median time. The reference
takes every flow by itself (``per_flow.py``) and is compared by flow-steps per second on one CPU
thread.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import torch
from overhead import hardware
from per_flow import per_flow

from holdfast.training import resolve
from holdfast_models.energy_flow.evaluation.benchmark import Precision, Work, busy_ms, measured
from holdfast_models.energy_flow.model import loop
from holdfast_models.energy_flow.model.noise import Key
from holdfast_models.energy_flow.model.stepping import LatticePass
from holdfast_models.energy_flow.recipe import RECIPE

# Seconds of a training step of the predecessor on an H200, its bugs patched (the specification).
PREDECESSOR = {"exp50/16": 46.6, "debug/8": 2.07}
_WARM = 8
_SLOW = 0.5  # seconds of a step of which few are enough
_FLAT = 200


@dataclass(frozen=True)
class Row:
    """What is timed."""

    preset: str | None
    batch: int = 0  # 0: as shipped
    flows: int = 0  # capacity: all cells, or fewer
    cuda: bool = True
    precision: Precision = "auto"

    @property
    def overrides(self) -> list[str]:
        """What makes it the core alone."""
        if not self.batch:
            return []
        size = [f"model.flows.capacity={self.flows}", f"train.data.batch={self.batch}"]
        return ["model.convergence.on=false", "bridge.on=false", "train.accumulate=1", *size]


_SHIPPED = [None, *RECIPE.presets]
ROWS = {
    **{f"{name or 'default'} as shipped": Row(name) for name in _SHIPPED},
    "debug/8": Row("debug", 8, 3200),
    "experiment/16": Row("experiment", 16, 12_544),
    "exp50/16": Row("exp50", 16, 40_000),
    "exp50/16 fp32": Row("exp50", 16, 40_000, precision="fp32"),
    "exp50/64": Row("exp50", 64, 160_000),
    "max80/64 capacity 20000": Row("max80", 64, 20_000),
    "max80/64 all cells": Row("max80", 64, 409_600),
    "cpu debug/8": Row("debug", 8, 3200, cuda=False),
}


@dataclass
class Result:
    """One row of the table."""

    row: str
    samples_per_second: float = 0.0
    median_ms: float = 0.0
    spread: float = 0.0
    steps: int = 0
    peak_gb: float = 0.0
    busy: float | None = None
    growth_mb: float | None = None
    mode: str = ""
    ready_s: float = 0.0
    error: str = ""
    more: dict[str, Any] = field(default_factory=dict)


def measure(name: str, row: Row, seconds: float, overrides: list[str]) -> Result:
    """Time a row for about so many seconds."""
    device = torch.device("cuda" if row.cuda else "cpu")
    settings = resolve(RECIPE, preset=row.preset, overrides=[*row.overrides, *overrides])
    result = Result(name)
    began = time.perf_counter()
    work = Work(settings, device, row.precision)
    samples = work.batch * work.window
    work.model.train()
    with work.guarded():
        work.train(0)
        _wait(device)
        result.ready_s = time.perf_counter() - began
        number, once = 1, _SLOW
        while number < 4 or (number < _WARM and once < _SLOW):  # past the capture of a graph
            began = time.perf_counter()
            work.train(number)
            _wait(device)
            once = time.perf_counter() - began
            number += 1
        steps = max(3, min(200, max(30, int(seconds / once)), int(2 * seconds / once)))
        found = measured(work.train, device, samples, steps=steps, warmup=0, first=number)
        number += steps
        low, high = _quantiles(found["milliseconds"])
        result.median_ms, result.steps = found["median_ms"], steps
        result.samples_per_second = 1000 * samples / found["median_ms"]
        result.spread = (high - low) / found["median_ms"]
        result.peak_gb, result.mode = found["peak_gb"], work.mode()
        if device.type == "cuda" and once < 1:
            result.busy = busy_ms(work.train, number) / found["median_ms"]
        if device.type == "cuda" and once * _FLAT < 2 * seconds:
            before = torch.cuda.memory_allocated()
            for step in range(number + 5, number + 5 + _FLAT):
                work.train(step)
            _wait(device)
            result.growth_mb = (torch.cuda.memory_allocated() - before) / 1e6
    return result


def reference(seconds: float, width: int = 5, overrides: list[str] | None = None) -> Result:
    """Flow-steps per second of the slow reference and of ours; one thread, debug's networks."""
    row = ROWS["cpu debug/8"]
    name = "per-flow reference, cpu"
    small = [f"model.lattice.width={width}", f"model.lattice.height={width}"]
    size = [*small, f"model.flows.capacity={width * width}", "train.data.batch=1"]
    given = [*row.overrides, *size, *(overrides or [])]
    settings = resolve(RECIPE, preset=row.preset, overrides=given)
    torch.set_num_threads(1)
    work = Work(settings, torch.device("cpu"))
    core = work.model.core
    assert core is not None
    surface_BHW = torch.randn(1, width, width)
    lattice_pass = LatticePass(1, settings.model.steps, Key(0, 0), training=False, scale=1.0)
    wanted_BS = loop.run(core.parts, lattice_pass, surface_BHW).surface_BS
    torch.testing.assert_close(per_flow(core, surface_BHW)[0], wanted_BS, atol=1e-4, rtol=1e-4)
    times, moved = [], 0
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 30):
        began = time.perf_counter()
        out_BS, moved = per_flow(core, surface_BHW)
        out_BS.square().mean().backward()
        work.optimizer.step()
        work.optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    median = statistics.median(times)
    ours = measure("cpu debug/8", row, seconds, overrides or [])
    own = row.flows * moved / width**2 * 1000 / ours.median_ms
    ratio = own * median / moved
    more = {"flow_steps_per_second": moved / median, "ours": own, "ratio": ratio}
    return Result(name, 1 / median, 1000 * median, steps=len(times), mode="per flow", more=more)


def _quantiles(series: list[float]) -> tuple[float, float]:
    ordered = sorted(series)
    return ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def markdown(results: list[Result], command: str) -> str:
    """The table that is committed."""
    lines = [
        "# energy_flow: speed of a training step",
        "",
        f"Command: `{command}`",
        f"Hardware: {hardware()}",
        f"Date: {date.today()}",
        "",
        "Whole steps under the guard. Spread: 5th to 95th percentile over the median. Ready: the",
        "first step, compiling included. Growth: memory over 200 further steps.",
        "",
        "| row | samples/s | median ms | spread | steps | peak GB | busy | growth | mode | ready |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        if r.error:
            lines.append(f"| {r.row} | failed: {r.error} | | | | | | | {r.mode} | |")
            continue
        busy = "-" if r.busy is None else f"{r.busy:.0%}"
        growth = "-" if r.growth_mb is None else f"{r.growth_mb:.1f} MB"
        lines.append(
            f"| {r.row} | {r.samples_per_second:.1f} | {r.median_ms:.2f} | {r.spread:.1%} "
            f"| {r.steps} | {r.peak_gb:.1f} | {busy} | {growth} | {r.mode} | {r.ready_s:.1f} s |"
        )
    for r in results:
        if r.row in PREDECESSOR and r.median_ms:
            slow = PREDECESSOR[r.row]
            lines += [
                "",
                f"{r.row}: the predecessor needed {slow} s for a step on an H200 (a figure of the "
                f"specification, not measured here); {1000 * slow / r.median_ms:.0f} times.",
            ]
        if "ratio" in r.more:
            lines += [
                "",
                f"Per-flow reference: {r.more['flow_steps_per_second']:.0f} flow-steps/s on one "
                f"CPU thread, ours {r.more['ours']:.0f}: {r.more['ratio']:.1f} times.",
            ]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """Options of the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", action="append", metavar="NAME", help="beginning of a row's name")
    parser.add_argument("--seconds", type=float, default=3.0, help="timed for a row, about")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    return parser.parse_args()


def main() -> int:
    """Every row by itself: one that fails leaves the others."""
    args = parse()
    cuda = torch.cuda.is_available()
    # The reference times "cpu debug/8" as well; threads are set for it last.
    names = [name for name, row in ROWS.items() if row.cuda and cuda] + ["per-flow reference"]
    results: list[Result] = []
    for name in names:
        if args.row and not any(name.startswith(one) for one in args.row):
            continue
        began = time.perf_counter()
        try:
            if name in ROWS:
                result = measure(name, ROWS[name], args.seconds, args.set)
            else:
                result = reference(args.seconds, overrides=args.set)
        except Exception as error:
            traceback.print_exc()
            result = Result(name, error=f"{type(error).__name__}: {str(error)[:200]}")
        results.append(result)
        took = time.perf_counter() - began
        print(json.dumps(asdict(result)), f"({took:.1f} s)", flush=True)
        gc.collect()
        if cuda:
            torch.cuda.empty_cache()
    options = sys.argv[1 : sys.argv.index("--write")] if args.write else sys.argv[1:]
    command = " ".join(["python benchmarks/energy_flow.py", *options])
    table = markdown(results, command)
    print(table)
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        Path(args.write).mkdir(parents=True, exist_ok=True)
        (Path(args.write) / f"energy_flow_{place}_{date.today()}.md").write_text(table)
    return 0 if not any(result.error for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

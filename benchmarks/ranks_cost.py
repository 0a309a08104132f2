"""What guarding costs where ranks train together: plain DDP and plain FSDP2 against guarded.

    python benchmarks/ranks_cost.py                  # two gloo ranks on this machine
    python benchmarks/ranks_cost.py --rounds 20 --steps 25 --write

Every rank holds trainings of the same model, one guarded and two plain, and runs blocks of
them in turn: plain, guarded, plain, guarded. Plain blocks have every patch and hook taken out. The
ratio is the median over rounds of a guarded block's time over that of the plain block before it,
with the lower and upper quartile; ``again`` is plain over plain, which is what the figures beside
it are worth. The slowest rank counts; the time of its cores says more where others use the machine.
Under DDP the guard adds no collective, under FSDP2 one sum of a number for each parameter. Runs
itself under ``holdfast run`` and ``torchrun``.
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
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

RESULTS = Path(__file__).parent / "results"
# Width, layers, samples of a batch.
SIZES = {"small": (64, 4, 32), "medium": (512, 6, 32), "large": (352, 25, 128)}

Step = Callable[[], None]


def network(size: str) -> nn.Module:
    """A stack of equal layers."""
    torch.manual_seed(0)
    width, depth, _ = SIZES[size]
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers)


def training(form: str, size: str) -> Step:
    """One step of a training in this form."""
    net = network(size)
    if form == "ddp":
        net = nn.parallel.DistributedDataParallel(net)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in net:  # type: ignore[attr-defined]
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    x = torch.randn(SIZES[size][2], SIZES[size][0])

    def step() -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    return step


def measure(form: str, size: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step in each block of this rank, by variant: on the clock and of its cores."""
    from holdfast.boot import patches, session

    def guard(on: bool) -> None:
        patches.uninstall()
        if on:
            patches.install(session.current)

    order = {"plain": False, "again": False, "guarded": True}
    made: dict[str, Step] = {}
    for name, on in order.items():
        guard(on)
        made[name] = training(form, size)
        for _ in range(150):  # past the guard's first judgement of itself
            made[name]()
    kinds = [*order, *(f"{name} cpu" for name in order)]
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for name, on in order.items():
            guard(on)
            dist.barrier()
            began, used = time.perf_counter(), time.process_time()
            for _ in range(steps):
                made[name]()
            times[name].append((time.perf_counter() - began) / steps)
            times[f"{name} cpu"].append((time.process_time() - used) / steps)
    guard(False)
    return times


def work(about: argparse.Namespace) -> None:
    """One rank: every form and size; the times of the slowest rank go to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, dict[str, list[float]]] = {}
    for size in about.sizes:
        for form in ("ddp", "fsdp2"):
            times = measure(form, size, about.rounds, about.steps)
            rows = torch.tensor(list(times.values()))
            dist.all_reduce(rows, dist.ReduceOp.MAX)
            found[f"{form} {size}"] = dict(zip(times, rows.tolist(), strict=True))
    if dist.get_rank() == 0:
        Path(about.to).write_text(json.dumps(found))
    dist.destroy_process_group()


def table(found: dict[str, dict[str, list[float]]]) -> list[str]:
    """One line for each form and variant."""
    head = "| model | form | variant | ms | ratio | quartiles | CPU ms | ratio | quartiles |"
    lines = [head, "|" + "---|" * 9]
    for name, times in found.items():
        form, size = name.split()
        width, depth, batch = SIZES[size]
        for variant in ("plain", "again", "guarded"):
            line = f"| {depth} × {width}, batch {batch} | {form} | {variant} |"
            for kind in ("", " cpu"):
                own, plain = times[variant + kind], times["plain" + kind]
                ratios = [one / other for one, other in zip(own, plain, strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                line += f" {statistics.median(own) * 1e3:.2f} |"
                reported = f" {middle:.3f} | {low:.3f} to {high:.3f} |"
                line += reported if variant != "plain" else " | |"
            lines.append(line)
    return lines


def main() -> None:
    """Measure and print; ``--write`` leaves a file in results/."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--to", help=argparse.SUPPRESS)
    about = parser.parse_args()
    if about.to:
        work(about)
        return
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        to = os.path.join(folder, "found.json")
        under = [sys.executable, "-m", "holdfast", "run", "--quiet", "--run-dir", f"{folder}/run"]
        ranks = ["--standalone", "--nproc-per-node", str(about.ranks)]
        words = [*under, "-m", "torch.distributed.run", *ranks, *sys.argv, "--to", to]
        subprocess.run(words, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        found = json.loads(Path(to).read_text())
    lines = [
        "# Guard cost where ranks train together",
        "",
        f"Command: `python benchmarks/ranks_cost.py --rounds {about.rounds} --steps {about.steps} "
        f"--ranks {about.ranks} --sizes {' '.join(about.sizes)}`",
        f"Hardware: {platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}, "
        f"Python {platform.python_version()}; load average {before[0]:.1f} before, "
        f"{os.getloadavg()[0]:.1f} after",
        f"Date: {date.today()}",
        "",
        *table(found),
    ]
    print("\n".join(lines))
    if about.write:
        path = RESULTS / f"ranks_cost_cpu_{date.today()}.md"
        path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""What the trainer costs over a loop written by hand, and how steady its steps are.

    python benchmarks/trainer.py                       # every workload this machine can run
    python benchmarks/trainer.py --workload gru --rounds 6 --steps 120
    python benchmarks/trainer.py --write               # also into benchmarks/results/

The hand-written loop is the shortest that trains: a DataLoader, zero_grad, forward, backward,
step. The trainer does the same with its guard, checkpoints, progress lines and settings at their
defaults (no clipping, which the short loop has not either). Both take turns in one process; a
ratio is that of the lower quartiles of the rounds. Steadiness is about the trainer alone: the
median step time of ten windows after the first steps, and the memory before and after.
"""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import torch
from overhead import hardware
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from workloads import GPT

from holdfast.config import from_dict
from holdfast.training import Place, Trainer, TrainSettings
from holdfast.training.demo import RECIPE, DemoSettings
from holdfast.training.loop.progress import PlainLines

Loss = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Workload:
    """Model, loss and data on the CPU, and how they are trained."""

    name: str
    make: Callable[[], tuple[nn.Module, Loss, Dataset[Any]]]
    batch: int
    precision: str = "fp32"
    needs_cuda: bool = False
    warm: int = 20
    """Steps before the first that counts."""


def _mlp() -> tuple[nn.Module, Loss, Dataset[Any]]:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(192, 192), nn.GELU()]
    x = torch.randn(64 * 64, 192)
    return (
        nn.Sequential(*layers),
        lambda net, batch: (net(batch[0]) - batch[1]).square().mean(),
        TensorDataset(x, x.roll(1, 1)),
    )


def _gru() -> tuple[nn.Module, Loss, Dataset[Any]]:
    torch.manual_seed(0)
    task = RECIPE.build(DemoSettings(), Place(torch.device("cpu"), rank=1))
    return task.model, task.loss, task.train  # type: ignore[return-value]


def _gpt() -> tuple[nn.Module, Loss, Dataset[Any]]:
    torch.manual_seed(0)

    def loss(net: nn.Module, batch: Any) -> Tensor:
        tokens = batch[0]
        logits = net(tokens[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return GPT(), loss, TensorDataset(torch.randint(0, 50304, (16 * 64, 1025)))


WORKLOADS = (
    Workload("mlp-1.5ms", _mlp, 64),
    Workload("gru-demo", _gru, 64),
    # Until the three snapshots have their place in pinned memory, about a second in all.
    Workload("gpt124m", _gpt, 16, "bf16", True, warm=80),
)


def _sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def by_hand(work: Workload, steps: int) -> float:
    """Seconds per step of the shortest loop."""
    model, loss, data = work.make()
    device = "cuda" if work.needs_cuda else "cpu"
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=work.needs_cuda or None)
    loader = DataLoader(data, work.batch, shuffle=True, drop_last=True, pin_memory=work.needs_cuda)
    done, began = 0, 0.0
    while True:
        for batch in loader:
            if done == work.warm:
                _sync()
                began = time.perf_counter()
            if done == work.warm + steps:
                _sync()
                return (time.perf_counter() - began) / steps
            if work.needs_cuda:
                batch = [tensor.to(device, non_blocking=True) for tensor in batch]
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16, enabled=work.precision == "bf16"):
                value = loss(model, batch)
            value.backward()
            optimizer.step()
            done += 1


@dataclass
class Steadiness:
    """The trainer's own steps: medians of windows, and memory before and after."""

    windows: list[float]
    before: float
    after: float


def trained(
    work: Workload, steps: int, holdfast: dict[str, Any] | None = None
) -> tuple[float, Steadiness]:
    """Seconds per step of the trainer, with these settings of the guard."""
    model, loss, data = work.make()
    stamps: list[float] = []
    memory: list[float] = []

    def stepped(step: int) -> None:
        if step in (work.warm, work.warm + steps):
            _sync()
        stamps.append(time.perf_counter())
        if step in (work.warm, work.warm + steps):
            memory.append(_memory(work))
        if step == work.warm:
            stamps[-1] = time.perf_counter()  # looking at the memory takes longer than a step

    settings = from_dict(
        {
            "device": "cuda" if work.needs_cuda else "cpu",
            "epochs": None,
            "steps": work.warm + steps,
            "precision": work.precision,
            "clip": None,
            "optimizer": {"lr": 1e-4},
            "data": {"batch": work.batch, "drop_last": True},
            "holdfast": holdfast or {},
        },
        kind=TrainSettings,
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model,
            loss,
            data,
            settings=settings,
            run_dir=f"{folder}/run",
            progress=PlainLines(io.StringIO(), 10, 5.0),
            stepped=stepped,
        ).fit()
    measured = stamps[work.warm - 1 :]
    each = [b - a for a, b in itertools.pairwise(measured)]
    size = max(1, len(each) // 10)
    windows = [statistics.median(each[i : i + size]) for i in range(0, len(each), size)][:10]
    return (measured[-1] - measured[0]) / steps, Steadiness(windows, memory[0], memory[-1])


def _memory(work: Workload) -> float:
    gc.collect()
    if work.needs_cuda:
        return float(torch.cuda.memory_allocated())
    return float(psutil.Process().memory_info().rss)


def measure(work: Workload, rounds: int, steps: int) -> str:
    """One row of the table."""
    hand: list[float] = []
    ours: list[float] = []
    spread: list[float] = []
    growth: list[float] = []
    for turn in range(rounds):
        for name in ("hand", "ours") if turn % 2 else ("ours", "hand"):
            if name == "hand":
                hand.append(by_hand(work, steps))
                continue
            seconds, steady = trained(work, steps)
            ours.append(seconds)
            middle = statistics.median(steady.windows)
            spread.append(max(abs(w / middle - 1) for w in steady.windows))
            growth.append(steady.after / steady.before)
    low = [statistics.quantiles(one, n=4)[0] * 1e3 for one in (hand, ours)]
    return (
        f"| {work.name} | {low[0]:.3f} | {low[1]:.3f} | {low[1] / low[0]:.4f} "
        f"| {min(spread):.1%} to {max(spread):.1%} | {max(growth):.3f} | {rounds} x {steps} |"
    )


def main() -> None:
    """Measure and show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", action="append", help="prefix of the workloads to run")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--write", metavar="DIR", nargs="?", const=str(Path(__file__).parent / "results")
    )
    args = parser.parse_args()
    rows: list[str] = []
    for work in WORKLOADS:
        wanted = not args.workload or any(work.name.startswith(w) for w in args.workload)
        if wanted and (torch.cuda.is_available() or not work.needs_cuda):
            rows.append(measure(work, args.rounds, args.steps))
            print(rows[-1], flush=True)
    options = f" --rounds {args.rounds} --steps {args.steps}"
    picked = "".join(f" --workload {one}" for one in args.workload or [])
    table = "\n".join(
        [
            "# The trainer beside a loop written by hand",
            "",
            f"Command: `python benchmarks/trainer.py{picked}{options}`",
            f"Hardware: {hardware()}",
            f"Date: {date.today()}",
            "",
            "Lower quartiles of rounds that take turns; guard, checkpoints and progress are on. "
            "Steadiness: the largest deviation of a window's median step from the middle one, the "
            "best and the worst round. Memory: after all steps over before them, the worst round.",
            "",
            "| workload | by hand ms | trainer ms | ratio | windows deviate by | memory | rounds |",
            "|---|---|---|---|---|---|---|",
            *rows,
        ]
    )
    print(f"\n{table}")
    if args.write:
        place = "h200" if "H200" in hardware() else "cpu"
        path = Path(args.write) / f"trainer_{place}_{date.today()}.md"
        path.write_text(f"{table}\n")


if __name__ == "__main__":
    main()

"""The training that the drills are done to. It tells every step it has made, with a digest.

python victim.py RUN_DIR --steps 100 --every 5            # watched, saves itself, resumes
holdfast run --run-dir RUN_DIR victim.py RUN_DIR --plain  # knows nothing of holdfast
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from holdfast.config import (
    CheckpointSettings,
    RunSettings,
    Settings,
    SpikeSettings,
)
from holdfast.watching.watch import Watch, watch

SAMPLES, BATCH, INPUTS = 512, 16, 8


class Count:
    """How many steps the run has made: a part of its state like any other."""

    steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


class Samples(Dataset[tuple[Tensor, Tensor]]):
    """A noisy function of eight numbers; loading one of the samples may be deadly."""

    def __init__(self, seed: int, deadly: int = -1, how: str = "") -> None:
        rng = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, INPUTS, generator=rng)
        noise = 0.3 * torch.randn(SAMPLES, 1, generator=rng)
        self.y = (self.x[:, :2].sum(1, keepdim=True)).sin() + noise
        self.deadly, self.how = deadly, how

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index == self.deadly:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            os._exit(int(self.how))
        return self.x[index], self.y[index]


def digest(weights: Mapping[str, Tensor]) -> str:
    """What the weights are, in short."""
    data = b"".join(value.numpy().tobytes() for value in weights.values())
    return hashlib.sha256(data).hexdigest()[:16]


def span(text: str) -> range:
    """``100:140`` as a range."""
    begin, end = text.split(":")
    return range(int(begin), int(end))


def options() -> argparse.Namespace:
    """What is to happen, and when."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--plain", action="store_true", help="without holdfast.watch")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--dir", help="checkpoint.dir")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ready", action="store_true", help="wait for a line before anything")
    parser.add_argument("--deadly", type=int, default=-1, help="sample that ends its worker")
    parser.add_argument("--how", default="1", help="exit code of the worker, or kill")
    parser.add_argument("--full", type=span, default=range(0), help="steps with a full disk")
    parser.add_argument("--limit", type=int, default=-1, help="no file larger than this, then")
    parser.add_argument("--ballast", type=Path, help="or this file takes all the room there is")
    parser.add_argument("--swap", type=int, default=-1, help="step: a file replaces checkpoints/")
    parser.add_argument("--bad", type=span, action="append", default=[], help="poisoned steps")
    parser.add_argument("--poison", choices=("input", "loss", "grad"), default="input")
    parser.add_argument("--clean", action="store_true", help="leave the poisoned batches out")
    parser.add_argument("--window", type=span, default=range(0), help="inputs of another scale")
    parser.add_argument("--scale", type=float, default=300.0)
    parser.add_argument("--decay", action="store_true", help="learning rate down to 0 at the end")
    parser.add_argument("--damage", type=int, default=-1, help="step after which weights are hit")
    return parser.parse_args()


class Happenings:
    """What befalls the run, by step."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.store = args.run_dir / "checkpoints"

    def before(self, step: int) -> None:
        full = self.args.full
        if full and step == full.start:
            while not list(self.store.glob("*.json")):  # there must be an older one to lose
                time.sleep(0.01)
            self._fill()
        elif full and step == full.stop:
            self._free()
        if step == self.args.swap:
            while not list(self.store.glob("*.json")):
                time.sleep(0.01)
            self.store.rename(self.store.with_name("moved"))
            self.store.write_text("no folder")

    def _fill(self) -> None:
        if self.args.ballast is None:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.args.limit, hard))
            return
        with contextlib.suppress(OSError), self.args.ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def _free(self) -> None:
        if self.args.ballast is None:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        else:
            self.args.ballast.unlink()

    def bad(self, step: int) -> bool:
        return any(step in span for span in self.args.bad)


def spoil(model: nn.Module) -> None:
    """As a broken update would: every weight a multiple of what it was."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-8.0)


class Collate:
    """Makes batches and counts them; some hold a NaN."""

    def __init__(self, bad: Callable[[int], bool]) -> None:
        self.made, self.bad = 0, bad

    def __call__(self, samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, int]:
        x, y = (torch.stack(list(part)) for part in zip(*samples, strict=True))
        number, self.made = self.made, self.made + 1
        if self.bad(number):
            x[3, 2] = float("nan")
        return x, y, number


def batches(loader: Any, guard: Watch | None) -> Iterator[tuple[Tensor, Tensor, int]]:
    for _ in range(10**9) if guard is None else guard.epochs(10**9):
        yield from loader if guard is None else guard(loader)


def watched(
    args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, count: Count
) -> Watch:
    """What the library is for: saves now and then, goes on from the newest state."""
    settings = Settings(
        checkpoint=CheckpointSettings(steps=args.every, dir=args.dir),
        run=RunSettings(ring_mib=1),
        # What it has learned is not part of a checkpoint; a resume is to be exact here.
        spike=SpikeSettings(detect=False),
    )
    where = {"run_dir": args.run_dir, "resume": "auto", "settings": settings}
    return watch(model, optimizer, state={"count": count}, **where)


def main() -> None:
    args = options()
    happenings = Happenings(args)
    torch.set_num_threads(1)
    if args.ready:
        # What torch imports on first use is no instant of a run.
        torch.optim.AdamW([nn.Parameter(torch.ones(1))]).step()
        print("ready", flush=True)
        sys.stdin.readline()
    torch.manual_seed(args.seed)
    first = nn.Linear(INPUTS, args.width)
    model = nn.Sequential(
        first, nn.Tanh(), nn.Dropout(0.1),
        nn.Linear(args.width, args.width), nn.Tanh(), nn.Linear(args.width, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    count = Count()
    data = Samples(args.seed, args.deadly, args.how)
    collate = Collate(lambda number: args.poison == "input" and happenings.bad(number))
    loader = DataLoader(data, BATCH, True, num_workers=args.workers, collate_fn=collate)
    guard = None if args.plain else watched(args, model, optimizer, count)
    print("begin", count.steps, flush=True)
    seen = 0
    for x, y, drawn in batches(loader, guard):
        # By its place in the data: the guard may hand a batch out twice.
        step, seen = (drawn if args.plain and not args.workers else seen), seen + 1
        if step == args.steps or (count.steps == args.steps and not args.plain):
            break
        happenings.before(count.steps)
        poisoned = happenings.bad(step)
        if poisoned and args.clean:
            continue
        if step in args.window and not args.clean:
            x, y = x * args.scale, y * args.scale
        loss = nn.functional.mse_loss(model(x), y)
        if poisoned and args.poison == "loss":
            loss = loss / 0.0
        elif poisoned and args.poison == "grad":
            loss = loss + (0.0 * first.weight).sqrt().sum()  # zero, with an infinite slope
        if guard is not None:
            guard.backward(loss)
            guard.step()
        else:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if args.decay:
            for group in optimizer.param_groups:
                group["lr"] = 1e-2 * (1 - (step + 1) / args.steps)
        if step == args.damage and not args.clean:
            spoil(model)
        count.steps += 1
        print("step", count.steps, digest(model.state_dict()), time.monotonic(), flush=True)
    if guard is not None:
        guard.close()
    model.eval()
    held_out = Samples(args.seed + 1)
    with torch.no_grad():
        final = float(nn.functional.mse_loss(model(held_out.x), held_out.y))
    print("end", count.steps, digest(model.state_dict()), final, flush=True)


if __name__ == "__main__":
    main()

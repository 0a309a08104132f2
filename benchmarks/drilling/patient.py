"""A plain training that knows nothing of holdfast, and what befalls it: hangs, no memory, clocks.

holdfast run --run-dir RUN_DIR patient.py FOLDER --hang lock --at 20
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import signal
import struct
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, BATCH, INPUTS = 256, 8, 6
STEPS = SAMPLES // BATCH
STANDS = 14.0
"""Seconds for which a process stands still that is not ended meanwhile."""
HELD = threading.Lock()


def stand_still(how: str) -> None:
    """Wait as processes do that hang: for a lock, for another process, inside of native code."""
    if how == "lock":
        HELD.acquire()
        HELD.acquire(timeout=STANDS)
    elif how == "sleep":
        time.sleep(STANDS)
    elif how == "native":
        # No signal handler of Python runs while this waits.
        until = time.monotonic() + STANDS
        while time.monotonic() < until:
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(STANDS * 1e6)))
    elif how == "pipe":
        reading, writing = os.pipe()
        threading.Timer(STANDS, os.close, [writing]).start()
        os.read(reading, 1)


def want_memory() -> Tensor:
    """More than there is."""
    return torch.ones(1 << 36, dtype=torch.uint8)


class Files(Dataset[Tensor]):
    """Numbers in one file each; reading one may hang, or take more memory than there is."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.files = [args.folder / f"{number}.bin" for number in range(SAMPLES)]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        if self.args.sample == index:
            if self.args.hang:
                stand_still(self.args.hang)
            elif self.args.oom == "data":
                want_memory()
        return torch.tensor(struct.unpack(f"{INPUTS}f", self.files[index].read_bytes()))


class Greedy(torch.autograd.Function):
    """Takes more memory than there is on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        want_memory()
        return grads[0]


def options() -> argparse.Namespace:
    """What is to happen, and when."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at", type=int, default=-1, help="step at which it happens")
    parser.add_argument("--sample", type=int, default=-1, help="or the sample that does it")
    parser.add_argument("--hang", choices=("lock", "sleep", "native", "pipe"))
    parser.add_argument("--oom", choices=("data", "forward", "backward", "step", "validation"))
    parser.add_argument("--jump", type=float, default=0.0, help="seconds by which the clock is set")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of each validation")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds that each step takes")
    parser.add_argument("--die", action="store_true", help="SIGKILL at that step, once")
    return parser.parse_args()


def set_clock(by: float) -> None:
    """What the whole process reads as the time of day."""
    real = time.time
    time.time = lambda: real() + by


def main() -> None:
    args = options()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    if args.oom:
        # Torch itself has mapped a few GiB; what is wanted is 64.
        resource.setrlimit(resource.RLIMIT_AS, (32 << 30, 32 << 30))
    loader = DataLoader(Files(args), BATCH, shuffle=True, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(INPUTS - 1, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step, loss = 0, torch.tensor(0.0)
    print("begin", step, flush=True)
    for _ in range(args.epochs):
        for batch in loader:
            here = step == args.at
            if here and args.hang and args.sample < 0:
                stand_still(args.hang)
            if here and args.jump:
                set_clock(args.jump)
            if here and args.oom == "forward":
                want_memory()
            predicted = model(batch[:, 1:])
            if here and args.oom == "backward":
                predicted = Greedy.apply(predicted)
            loss = nn.functional.mse_loss(predicted, batch[:, :1])
            optimizer.zero_grad()
            loss.backward()
            if here and args.oom == "step":
                want_memory()
            optimizer.step()
            step += 1
            print("step", step, "-", time.monotonic(), flush=True)
            time.sleep(args.slow)
            if args.die and here and not (args.folder / "died").exists():
                (args.folder / "died").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        with torch.no_grad(), contextlib.suppress(KeyboardInterrupt):
            if args.oom == "validation":
                want_memory()
            until = time.monotonic() + args.pause
            while time.monotonic() < until:  # a validation that no loader feeds
                model(torch.randn(64, INPUTS - 1))
    print("end", step, "-", loss.item(), flush=True)


if __name__ == "__main__":
    main()

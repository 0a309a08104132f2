"""One rank on a GPU over NCCL, plain and guarded: host syncs, an exact skip, a rollback.

    python benchmarks/ranks_gpu.py                  # DDP and FSDP2 on the GPU of this machine
    python benchmarks/ranks_gpu.py --device cpu     # the same over gloo: does it run at all

NCCL takes no two ranks on one GPU, so that this is what one GPU can show of several ranks. The
guarded run meets a NaN in one batch and, later, weights that no gradient has made; the plain one is
never given that batch. Their weights before the damage have to be the same to the bit, and so have
the numbers of host syncs on their training threads in between (``set_sync_debug_mode``).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BAD, COUNTED, DAMAGED = 160, 30, range(40, 100), 110
# A batch that is fed again, to find its line, would be another turn of the loop.
OPTIONS = ["--set", "rollback.every=8", "--set", "rollback.cost=1", "--set", "guard.replay=false"]


class Syncs:
    """Counts what the training thread waits for the GPU for, by line."""

    def __init__(self, device: str) -> None:
        self.found: Counter[str] = Counter()
        self._device, self._thread = device, threading.get_ident()
        warnings.simplefilter("always")
        warnings.showwarning = self._saw

    def _saw(self, message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
        if "called a synchronizing" in str(message) and threading.get_ident() == self._thread:
            self.found[f"{'/'.join(filename.split('/')[-3:])}:{lineno}"] += 1

    def on(self, wanted: bool) -> None:
        if self._device == "cuda":
            torch.cuda.set_sync_debug_mode("warn" if wanted else "default")


def digest(model: nn.Module) -> str:
    whole: list[Tensor] = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    flat = torch.cat([p.detach().flatten() for p in whole]).cpu()
    return hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:16]


def work(about: argparse.Namespace) -> None:
    """One rank; nothing of holdfast is in here. A line of what it saw at the end."""
    device = about.device
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model: nn.Module = nn.Sequential(*layers, nn.Linear(64, 1)).to(device)
    if about.form == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    inputs = torch.randn(64 * STEPS, 64)
    data = TensorDataset(inputs, inputs.mean(1, keepdim=True))
    loader = DataLoader(data, 64, sampler=DistributedSampler(data), pin_memory=device == "cuda")
    syncs, before, losses = Syncs(device), "", list[Tensor]()
    for step, (x, y) in enumerate(loader):
        if step == BAD:
            if not about.guarded:
                continue
            x[3, 0] = torch.nan
        syncs.on(step in COUNTED)
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        syncs.on(False)
        if step == DAMAGED - 1:
            before = digest(model)
        if step == DAMAGED and about.guarded:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(25.0)
    reported = {"weights": before, "syncs": dict(syncs.found), "loss": losses[-1].item()}
    reported["worst"] = max(loss.item() for loss in losses[DAMAGED:])
    print("told " + json.dumps(reported), flush=True)
    dist.destroy_process_group()


def start(form: str, device: str, folder: Path, *, guarded: bool) -> subprocess.Popen[str]:
    """One run of this file under torchrun, under ``holdfast run`` or not."""
    words = [sys.executable, "-u"]
    if guarded:
        words += ["-m", "holdfast", "run", "--run-dir", str(folder / form), *OPTIONS]
    words += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    words += [__file__, "--work", "--form", form, "--device", device]
    words += ["--guarded"] if guarded else []
    env = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST")}
    return subprocess.Popen(
        words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def reported_by(run: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = run.communicate(timeout=100)
    lines = [line[5:] for line in out.splitlines() if line.startswith("told ")]
    if not lines:
        raise SystemExit(f"exit {run.returncode}\n{out[-3000:]}")
    return json.loads(lines[0])


def judge(form: str, device: str, folder: Path) -> bool:
    """Run one form both ways, and print what differs."""
    from holdfast.report.summary import summarize
    from holdfast.run import LaneReader, Run

    began = time.monotonic()
    runs = {kind: start(form, device, folder, guarded=kind == "guarded")
            for kind in ("plain", "guarded")}  # fmt: skip
    reported = {kind: reported_by(run) for kind, run in runs.items()}
    plain, guarded = reported["plain"], reported["guarded"]
    run = Run.open(folder / form)
    events = [event for lane in run.lanes() for event in LaneReader(run, lane).read().events]
    errors = [event.data for event in events if event.kind == "holdfast_error"]
    backs = [(event.step, event.data["to"]) for event in events if event.kind == "rollback"]
    codes = [finding.code for finding in summarize(run).findings]
    same = plain["weights"] == guarded["weights"]
    added = sum(guarded["syncs"].values()) - sum(plain["syncs"].values())
    print(f"{form} on {device}, {time.monotonic() - began:.0f} s: the skip is "
          f"{'exact' if same else 'NOT exact'}; {added} host syncs added in {len(COUNTED)} steps "
          f"({sum(plain['syncs'].values())} plain); rollbacks {backs}; findings {codes}; loss "
          f"{guarded['loss']:.3g}, plain {plain['loss']:.3g}, worst {guarded['worst']:.3g}; "
          f"errors {errors}", flush=True)  # fmt: skip
    if added:
        print(f"  guarded {guarded['syncs']}\n  plain {plain['syncs']}", flush=True)
    return same and not added and bool(backs) and not errors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--form", default="", choices=("", "ddp", "fsdp2"))
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--guarded", action="store_true", help=argparse.SUPPRESS)
    about = parser.parse_args()
    if about.work:
        work(about)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        forms = [about.form] if about.form else ["ddp", "fsdp2"]
        return int(not all([judge(form, about.device, Path(folder)) for form in forms]))


if __name__ == "__main__":
    sys.exit(main())

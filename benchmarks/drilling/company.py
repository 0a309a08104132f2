"""A training of several ranks to which something happens on one of them.

    torchrun --nproc-per-node 2 company.py --fault nan --rank 1 --at 40

Plain PyTorch: nothing of holdfast is in here. Each rank ends with a line of what its weights are.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES, BATCH, STEPS = 2048, 16, 192


class Table(Dataset[Any]):
    """Numbers, some of which a fault changes on its rank."""

    def __init__(self, worker_dies_at: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(SAMPLES, 12, generator=generator)
        self.targets = self.inputs @ torch.randn(12, 1, generator=generator)
        self.worker_dies_at = worker_dies_at
        self.drawn = 0

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.drawn += 1
        if self.drawn == self.worker_dies_at:
            os.kill(os.getpid(), signal.SIGKILL)  # a lost worker
        return self.inputs[index], self.targets[index]


def stand_still() -> None:
    """Wait for a lock that nobody gives back."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=600)


def befalls(fault: str, x: Tensor, model: nn.Module) -> Tensor:
    """What happens to the rank that it happens to."""
    if fault == "nan":
        x = x.clone()
        x[3, 0] = -50.0  # below what the weights of the loss are made for
    elif fault == "crash":
        raise ValueError("the record of this rank is broken")
    elif fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "hang":
        stand_still()
    elif fault == "disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
    return x


def damaged(model: nn.Module) -> None:
    """Weights that no gradient has made: the same on every rank."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(25.0)


def digest(model: nn.Module) -> str:
    whole = [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]
    return hashlib.sha256(torch.cat([p.flatten() for p in whole]).numpy().tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", default="")
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--at", type=int, default=40)
    parser.add_argument("--parallel", default="ddp")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    own = rank == args.rank
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 1))
    if args.parallel == "fsdp":
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    lost_worker = args.fault == "worker" and own
    data = Table(args.at // 4 * BATCH if lost_worker else -1)
    sampler = DistributedSampler(data)
    loader = DataLoader(
        data, batch_size=BATCH, sampler=sampler, num_workers=int(args.fault == "worker")
    )
    step, loss = 0, torch.tensor(0.0)
    for epoch in range(STEPS // len(loader)):  # as many with two ranks as with four
        sampler.set_epoch(epoch)
        for x, y in loader:
            if own and step == args.at:
                x = befalls(args.fault, x, model)
            if args.fault == "slow" and own:
                time.sleep(0.06)
            weight = torch.sqrt(x[:, :1] + 10.0)
            loss = (weight * (model(x) - y) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            if args.fault == "spike" and step == args.at:
                damaged(model)
            optimizer.step()
            time.sleep(0.004)
            step += 1
    print(f"rank {rank} {step} {digest(model)[:16]} {loss.item():.6f}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Small trainings that several ranks run together, each with an engine of its own, or without.

Every function here runs in a process of its own for each rank; what it returns goes back to the
test. Ranks talk over gloo and meet at a file.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

from holdfast.boot import patches
from holdfast.config import Settings, WatcherSettings
from holdfast.guard.engine import Engine

from .conftest import MemoryRecorder

Job = tuple[str, Callable[..., Any], dict[str, Any]]


def run(folder: Path, world: int, jobs: list[Job]) -> dict[str, list[Any]]:
    """Run every job on all ranks; what each rank returned, by the name of the job."""
    mp.start_processes(_work, (world, folder, jobs), world, start_method="spawn")  # type: ignore[attr-defined]
    told = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
    return {name: [one.get(name, "not reached") for one in told] for name, *_ in jobs}


def _work(rank: int, world: int, folder: Path, jobs: list[Job]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    told: dict[str, Any] = {}
    for name, function, about in jobs:
        try:
            told[name] = function(**about)
        except Exception:
            told[name] = traceback.format_exc()
            break  # the others wait for us in vain: their group ends with this process
    torch.save(told, folder / f"{rank}.pt")
    dist.destroy_process_group()


@contextlib.contextmanager
def guarded(on: bool = True, **guard: Any) -> Iterator[MemoryRecorder | None]:
    """An engine in this process, as ``make_engine`` makes one."""
    if not on:
        yield None
        return
    settings = Settings(watchers=WatcherSettings(memory=False, time=False))
    settings = replace(settings, guard=replace(settings.guard, **guard))
    recorder = MemoryRecorder()
    engine = Engine(settings, lambda: recorder)  # type: ignore[arg-type,return-value]
    recorder.engine = engine  # type: ignore[attr-defined]
    patches.install(lambda: engine)
    try:
        yield recorder
    finally:
        patches.uninstall()
        engine.close()


def model() -> nn.Module:
    """Seven rows and one do not divide by two: shards differ, and one rank holds no row."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1))


def sharded(net: nn.Module, mesh: DeviceMesh | None = None, **how: Any) -> nn.Module:
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:  # type: ignore[attr-defined]
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh, **how)
    return fully_shard(net, mesh=mesh, **how)


def batch(step: int, rank: int) -> Tensor:
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(1000 * step + rank))


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "loop": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}


class Nan(torch.autograd.Function):
    """A loss that is NaN with gradients that are not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * float("nan")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0]


def train(
    *,
    on: bool = True,
    optimizer: str = "adamw",
    steps: int = 10,
    poison: int = -1,
    factor: float = float("nan"),
    leave_out: int = -1,
    clip: float | None = None,
    accumulate: int = 1,
    shard: bool = True,
    ddp: bool = False,
    fails_at: int = -1,
    nan_loss: int = -1,
    only: int | None = None,
    make: Callable[[], nn.Module] = model,
    mesh: tuple[int, ...] = (),
    compiled: bool = False,
    how: Callable[[], dict[str, Any]] = dict,
    **guard: Any,
) -> dict[str, Any]:
    """Train; weights, state and rows of this rank, and the collectives inside of each step.

    ``poison`` is the step at which the batch of the last rank is multiplied by ``factor``;
    ``only`` is the one rank that is guarded.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    net = make()
    if ddp:
        net = nn.parallel.DistributedDataParallel(net)
    elif shard:
        net = sharded(net, init_device_mesh("cpu", mesh) if mesh else None, **how())
    forward = torch.compile(net, backend="aot_eager") if compiled else net
    collectives: list[int] = []
    with guarded(on and only in (None, rank), **guard) as recorder:
        mine = OPTIMIZERS[optimizer](net.parameters())
        for step in range(steps):
            if step == leave_out:
                continue
            mine.zero_grad()
            for turn in range(accumulate):
                x = batch(step + 100 * turn, rank)
                if step == poison and rank == last:
                    x = x * factor
                loss = (forward(x) ** 2).mean()
                loss = Nan.apply(loss) if step == nan_loss and rank == last else loss
                loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            if step == fails_at and rank == last and recorder is not None:
                break_guard(recorder)
            with CommDebugMode() as counted:
                mine.step()
            collectives.append(counted.get_total_counts())
    return {
        "weights": [part(p).clone() for p in net.parameters()],
        "state": [part(v).clone() for p in net.parameters() for v in mine.state[p].values()
                  if isinstance(v, Tensor)],
        "collectives": collectives,
        **(told(recorder) if recorder is not None else {}),
    }  # fmt: skip


def part(tensor: Tensor) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor).detach()


def told(recorder: MemoryRecorder) -> dict[str, Any]:
    rows = recorder.rows()
    optimizers = recorder.of_kind("optimizer")
    return {
        "skipped": [int(row["step"]) for row in rows if row["skipped"]],
        "norms": [float(n) for n in rows["grad_norm"]],
        "rows": [{name: float(row[name]) for name in rows.dtype.names or ()} for row in rows],
        "how": optimizers[-1]["how"] if optimizers else "",
        "not_covered": [data["why"] for data in recorder.of_kind("not_covered")],
        "errors": recorder.of_kind("holdfast_error"),
    }


def break_guard(recorder: MemoryRecorder) -> None:
    """The guard of this rank fails from now on."""
    for _, guard in recorder.engine.training.guards():  # type: ignore[attr-defined]
        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("broken on purpose")

        guard._place = broken

"""Small trainings that several ranks run together, each with an engine of its own, or without.

Every function here runs in a process of its own for each rank; what it returns goes back to the
test. Ranks talk over gloo and meet at a file.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from holdfast.boot import patches
from holdfast.config import Settings, WatcherSettings
from holdfast.guard import sharded_norms
from holdfast.guard.engine import Engine

from .conftest import MemoryRecorder

Job = tuple[str, Callable[..., Any], dict[str, Any]]


def run(folder: Path, world: int, jobs: list[Job]) -> dict[str, list[Any]]:
    """Run every job on all ranks; what each rank returned, by the name of the job."""
    mp.start_processes(_work, (world, folder, jobs), world, start_method="fork")  # type: ignore[attr-defined]
    reported = [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]
    failed = [
        f"rank {rank}: {one['failed']}" for rank, one in enumerate(reported) if "failed" in one
    ]
    assert not failed, "\n".join(failed)
    return {name: [one[name] for one in reported] for name, *_ in jobs}


def _work(rank: int, world: int, folder: Path, jobs: list[Job]) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # what is imported is no model: the guard need not look through it
    store = dist.FileStore(str(folder / "store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    reported: dict[str, Any] = {}
    for name, function, about in jobs:
        try:
            reported[name] = function(**about)
        except Exception:
            reported["failed"] = f"{name}: {traceback.format_exc()}"
            break  # the others wait for us in vain: their group ends with this process
    torch.save(reported, folder / f"{rank}.pt")
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
    # The last layer belongs to the outermost module.
    for layer in list(net.children())[:-1]:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh, **how)
    fully_shard(net, mesh=mesh, **how)
    return net


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
    steps: int = 6,
    poison: int = -1,
    extreme: int = -1,
    omitted: int = -1,
    clip: float | None = None,
    accumulate: int = 1,
    shard: bool = True,
    ddp: bool = False,
    fails_at: int = -1,
    nan_loss: int = -1,
    only: int | None = None,
    patience: float = 60.0,
    count: bool = False,
    make: Callable[[], nn.Module] = model,
    mesh: tuple[int, ...] = (),
    compiled: bool = False,
    how: Callable[[], dict[str, Any]] = dict,
    **guard: Any,
) -> dict[str, Any]:
    """Train; weights, state and rows of this rank.

    Args:
        poison: the step at which the batch of the last rank is NaN.
        extreme: the step at which its loss, and so its gradients, are far too large.
        only: the one rank that is guarded; ``patience`` seconds it waits for the others.
        count: how many collectives there are inside of each step.
        (others): what their names say.
    """
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    sharded_norms._PATIENCE = patience
    net = make()
    if ddp:
        net = nn.parallel.DistributedDataParallel(net)
    elif shard:
        names = ("replicas", "shards")
        net = sharded(
            net, init_device_mesh("cpu", mesh, mesh_dim_names=names) if mesh else None, **how()
        )
    forward = torch.compile(net, backend="aot_eager") if compiled else net
    collectives: list[int] = []
    with guarded(on and only in (None, rank), **guard) as recorder:
        own_part = OPTIMIZERS[optimizer](net.parameters())
        for step in range(steps):
            if step == omitted:
                continue
            own_part.zero_grad()
            for turn in range(accumulate):
                x = batch(step + 100 * turn, rank)
                if step == poison and rank == last:
                    x = x * float("nan")
                loss = (forward(x) ** 2).mean()
                if step == extreme and rank == last:
                    loss = loss * 1e4
                loss = Nan.apply(loss) if step == nan_loss and rank == last else loss
                loss.backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            if step == fails_at and rank == last and recorder is not None:
                break_guard(recorder)
            if not count:
                own_part.step()
                continue
            with CommDebugMode() as counted:
                own_part.step()
            collectives.append(counted.get_total_counts())
    return {
        "weights": [part(p).clone() for p in net.parameters()],
        "state": [part(v).clone() for p in net.parameters() for v in own_part.state[p].values()
                  if isinstance(v, Tensor)],
        "collectives": collectives,
        **(reported(recorder) if recorder is not None else {}),
    }  # fmt: skip


def part(tensor: Tensor) -> Tensor:
    return getattr(tensor, "_local_tensor", tensor).detach()


def reported(recorder: MemoryRecorder) -> dict[str, Any]:
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
    for _, guard in recorder.engine.state.training.guards():  # type: ignore[attr-defined]

        def broken(*_: Any, **__: Any) -> Any:
            raise RuntimeError("broken on purpose")

        guard.presence.learn = broken


def norms_of_whole_model(steps: int = 6) -> list[list[float]]:
    """Norms of each layer, step by step, of the same training on one rank without sharding."""
    net = model()
    own_part = OPTIMIZERS["adamw"](net.parameters())
    found: list[list[float]] = []
    for step in range(steps):
        own_part.zero_grad()
        for rank in range(dist.get_world_size()):
            ((net(batch(step, rank)) ** 2).mean() / dist.get_world_size()).backward()
        found.append([float(p.grad.norm()) for p in net.parameters() if p.grad is not None])
        own_part.step()
    return found


def layer_norms(**guard: Any) -> list[list[float]]:
    """The same with sharding, as the guard measures it."""
    net = sharded(model())
    found: list[list[float]] = []
    with guarded(**guard) as recorder:
        assert recorder is not None
        engine = recorder.engine  # type: ignore[attr-defined]
        own_part = OPTIMIZERS["fused"](net.parameters())
        known = engine.state.writer._known
        engine.state.writer._known = lambda guard, record, late: (
            found.append(record.norms_by_layer().tolist()),
            known(guard, record, late),
        )
        for step in range(6):
            own_part.zero_grad()
            (net(batch(step, dist.get_rank())) ** 2).mean().backward()
            own_part.step()
        engine.state.writer.await_rows()
    return found


def beside_others(device_path: bool) -> dict[str, Any]:
    """Sharded, replicated and ordinary parameters in one optimizer, one without a gradient."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    full = [torch.randn(5, 3), torch.randn(4), torch.randn(2), torch.randn(3)]
    split = sharded(nn.Sequential(nn.Linear(3, 5, bias=False)), mesh)
    weight = next(split.parameters())
    copies = nn.Parameter(distribute_tensor(full[1], mesh, [Replicate()]))
    own, unused = nn.Parameter(full[2].clone()), nn.Parameter(full[3].clone())
    with guarded(device_path=device_path, fused=False) as recorder:
        assert recorder is not None
        own_part, same = (
            torch.optim.SGD([weight, copies, own, unused], lr=0.1, foreach=False),
            False,
        )
        for step in range(3):
            own_part.zero_grad()
            split(torch.ones(1, 3)).sum().backward()  # gradient of ones: 15 of them
            copies.grad = copies.detach() * 0 + 2.0  # 4 twos
            own.grad = torch.full((2,), 3.0)  # 2 threes
            if step == 1 and dist.get_rank() == dist.get_world_size() - 1:
                own.grad[0] = float("inf")
            before = [part(p).clone() for p in (weight, copies, own, unused)]
            own_part.step()
            if step == 1:
                after = [part(p) for p in (weight, copies, own, unused)]
                same = all(map(torch.equal, before, after))
        return {**reported(recorder), "same": same}


def put_back() -> dict[str, Any]:
    """A snapshot of a sharded training, and the way back to it."""
    from holdfast.checkpoint.training_state import TrainingState
    from holdfast.config import RollbackSettings
    from holdfast.errors import CheckpointError
    from holdfast.recovery.damage import Damage
    from holdfast.recovery.snapshots import Snapshots

    def some_steps(count: int) -> None:
        for step in range(count):
            own_part.zero_grad()
            (net(batch(step, dist.get_rank())) ** 2).mean().backward()
            own_part.step()

    def now() -> list[Tensor]:
        state = [v for p in net.parameters() for v in own_part.state[p].values()]
        return [part(t) for t in [*net.parameters(), *state] if isinstance(t, Tensor)]

    net = sharded(model())
    own_part = OPTIMIZERS["adamw"](net.parameters())
    some_steps(3)
    live = TrainingState({"net": net}, [own_part])
    given: Any = SimpleNamespace(training_state=lambda: live)
    snapshots, damage = Snapshots(RollbackSettings()), Damage(given)
    with CommDebugMode() as counted:
        taken = snapshots.take(live, 3, 0.0, 0)
        assert taken is not None
        then = [t.clone() for t in now()]
        shapes = [tuple(t.shape) for t in taken.views[:4]]
    some_steps(3)
    objects = [id(p) for p in net.parameters()]
    moments = [id(v) for p in net.parameters() for v in own_part.state[p].values()]
    moved = not all(map(torch.equal, then, now()))
    with CommDebugMode() as counted_back:
        live.put_back(taken.state())
        finite = damage.good(taken)
    same = all(map(torch.equal, then, now()))
    kept = objects == [id(p) for p in net.parameters()] and moments == [
        id(v) for p in net.parameters() for v in own_part.state[p].values()
    ]
    # State that is no longer there is made anew, spread like its parameter.
    own_part.state.clear()
    live.put_back(taken.state())
    anew = all(map(torch.equal, then, now()))
    some_steps(1)
    # The state of other shards is refused.
    other = {**taken.tree, "models": {"net": dict(taken.tree["models"]["net"])}}
    first = next(iter(other["models"]["net"]))
    held = other["models"]["net"][first]
    other["models"]["net"][first] = type(held)(torch.zeros(2, 6), held._spec, requires_grad=False)
    try:
        live.put_back(other)
        refused = ""
    except CheckpointError as error:
        refused = str(error)
    with torch.no_grad():
        net(batch(0, dist.get_rank()))  # the outermost module keeps what it has gathered
    while_gathered = snapshots.take(live, 8, 0.0, 0)
    some_steps(1)
    part(next(net.parameters())).view(-1)[:1].fill_(float("nan"))
    poisoned = snapshots.take(live, 9, 0.0, 0)
    return {
        "shapes": shapes,
        "moved": moved,
        "same": same,
        "kept": kept,
        "anew": anew,
        "finite": (finite, poisoned is not None and damage.good(poisoned)),
        "refused": refused,
        "while_gathered": while_gathered is None,
        "collectives": counted.get_total_counts() + counted_back.get_total_counts(),
    }


def probes_ask_nobody() -> int:
    """Collectives of all that looks at weights beside the norms: weights, updates, exams."""
    from holdfast.diagnosis.nonfinite.tensor_stats import bad, bad_rows, stat
    from holdfast.probes.model_state import largest_on_device, nonfinite_on_host
    from holdfast.probes.updates import UpdateSizes

    net = sharded(model())
    parameters = list(net.parameters())
    with CommDebugMode() as counted:
        before = UpdateSizes().before(parameters)
        assert before is not None
        with torch.no_grad():
            for p in parameters:
                part(p).mul_(1.5)
        assert torch.allclose(before.ratios(), torch.tensor(0.5, dtype=torch.float64))
        assert not largest_on_device(parameters).isnan().any()
        assert nonfinite_on_host(parameters) == []
        with torch.no_grad():
            part(parameters[0]).view(-1)[0] = float("inf")
        assert nonfinite_on_host(parameters) == [0]
        assert not largest_on_device(parameters)[0].isfinite()
        assert bad(parameters[0]) and stat(parameters[0]).inf == 1
        assert bad_rows(parameters[0], len(part(parameters[0]))) == [0]
    return counted.get_total_counts()


def mixed_precision() -> dict[str, Any]:
    """Shards in fp32, computed with in bf16."""
    return {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}


def tensor_parallel(*, on: bool = True, poison: int = -1, omitted: int = -1, **guard: Any) -> Any:
    """Columns and rows of two layers on different ranks; the bias of the second on all."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    with guarded(on, **guard) as recorder:
        own_part = OPTIMIZERS["adamw"](net.parameters())
        for step in range(6):
            if step == omitted:
                continue
            own_part.zero_grad()
            (net(batch(step, 0)) ** 2).mean().backward()
            if step == poison and dist.get_rank() == 1:
                part(net[0].weight.grad)[0, 0] = float("nan")  # type: ignore[arg-type]
            own_part.step()
    weights = [part(p).clone() for p in net.parameters()]
    return {"weights": weights, "state": [], **(reported(recorder) if recorder is not None else {})}


def two_optimizers(*, on: bool = True, poison: int = -1, omitted: int = -1, **guard: Any) -> Any:
    """The second has no gradients in every other step."""
    nets = [sharded(model()) for _ in range(2)]
    with guarded(on, **guard) as recorder:
        first = OPTIMIZERS["adamw"](nets[0].parameters())
        second = OPTIMIZERS["sgd"](nets[1].parameters())
        for step in range(6):
            if step == omitted:
                continue
            first.zero_grad()
            second.zero_grad()
            x = batch(step, dist.get_rank())
            if step == poison and dist.get_rank() == 1:
                x = x * float("nan")
            (nets[0](x) ** 2).mean().backward()
            if step % 2 == 0:
                (nets[1](x) ** 2).mean().backward()
            first.step()
            second.step()
    weights = [part(p).clone() for net in nets for p in net.parameters()]
    return {"weights": weights, "state": [], **(reported(recorder) if recorder is not None else {})}


def scaled(*, on: bool = True, fused: bool = False) -> dict[str, Any]:
    """With a GradScaler, which asks the other ranks by itself; a fused optimizer unscales."""
    net = sharded(model())
    with guarded(on) as recorder:
        own_part = torch.optim.AdamW(net.parameters(), lr=0.01, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        for step in range(6):
            own_part.zero_grad()
            x = batch(step, dist.get_rank())
            if step == 4 and dist.get_rank() == 1:
                x = x * float("nan")
            scaler.scale((net(x) ** 2).mean()).backward()
            scaler.step(own_part)
            scaler.update()
    weights = [part(p).clone() for p in net.parameters()]
    return {"weights": weights, "state": [], **(reported(recorder) if recorder is not None else {})}


def both_kinds() -> dict[str, Any]:
    """Four ranks: one layer split two ways and sharded, one only sharded; norms of the first step.

    ``expected`` is the norm of the same gradients without any of it.
    """
    names = ("data", "tensor")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    whole = copy.deepcopy(net)
    for turn in range(2):
        ((whole(batch(0, turn)) ** 2).mean() / 2).backward()
    expected = torch.stack([p.grad.norm() for p in whole.parameters()]).norm().item()  # type: ignore[union-attr]
    split: dict[str, ParallelStyle] = {"0": ColwiseParallel(output_layouts=Replicate())}
    parallelize_module(net, mesh["tensor"], split)
    fully_shard(net, mesh=mesh["data"])
    with guarded() as recorder:
        assert recorder is not None
        own_part = torch.optim.SGD(net.parameters(), lr=0.01, foreach=False)
        for step in range(2):
            own_part.zero_grad()
            (net(batch(step, mesh.get_local_rank("data"))) ** 2).mean().backward()
            if step == 1 and dist.get_rank() == 3:
                part(net[0].weight.grad)[0, 0] = float("inf")  # type: ignore[arg-type]
            own_part.step()
        meshes = [p.device_mesh.ndim for p in net.parameters()]  # type: ignore[attr-defined]
        return {"expected": expected, "meshes": meshes, **reported(recorder)}

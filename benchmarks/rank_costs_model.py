"""What agreement, checkpoints and restarts cost at 8 to 4,096 ranks: a model, and what it rests on.

    OMP_NUM_THREADS=1 python benchmarks/rank_costs_model.py            # measures, then the tables
    python benchmarks/rank_costs_model.py --no-measure --store-rate 20000

Nobody here has 4,096 ranks. The model is a few lines of arithmetic (``Machine`` and the functions
below it); its parameters are options, three of them are measured on this machine, and where it can
be checked (2 to 16 clients of the store, 2 and 4 ranks of gloo) the measurement stands beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

SIZES = (8, 64, 512, 1024, 4096)
CLIENTS = (1, 2, 4, 8, 16)
RANKS = (2, 4)
_SECONDS = 1.0
_ROUNDS = 3
_REDUCTIONS = 400


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The parameters, in seconds, bytes and bytes per second."""

    store_rate: float = 20_000.0  # small requests that the one store server answers per second
    key_rate: float = 500_000.0  # keys per second where many are read with one request
    store_trip: float = 200e-6  # one request there and back, when nobody else asks
    hop: float = 30e-6  # one message of a small all-reduce, as between two GPUs of two nodes
    poll: float = 0.5  # how often each rank asks whether there is news
    per_node: int = 8  # ranks
    parameters: float = 7e9
    bytes_each: float = 12.0  # of a checkpoint: weights and two moments in 32 bits
    host_copy: float = 10e9  # of a rank, from its device to host memory
    node_write: float = 5e9  # of a node, to the storage
    storage: float = 50e9  # of the storage, all nodes together
    start: float = 30.0  # a process until it has imported everything and its device is ready
    notice: float = 5.0  # until the launchers have seen a death and ended the other ranks
    connect: float = 1e-3  # for each other rank: a connection when the group is made
    rank_hours: float = 50_000.0  # of one rank between two failures


def polling_load(ranks: int, machine: Machine) -> float:
    """Share of what the store can answer that goes into asking for news."""
    return ranks / machine.poll / machine.store_rate


def event_seconds(ranks: int, machine: Machine) -> float:
    """From a proposal until every rank knows the step, at worst: n set, n keys read, n gets."""
    free = max(1e-9, 1.0 - polling_load(ranks, machine))
    asked = 2 * ranks / machine.store_rate + ranks / machine.key_rate
    return machine.poll + asked / free + 3 * machine.store_trip


def reduce_seconds(ranks: int, machine: Machine) -> float:
    """A small all-reduce as a tree: up and down, one message for each doubling."""
    return 2 * math.ceil(math.log2(ranks)) * machine.hop if ranks > 1 else 0.0


def ring_seconds(ranks: int, machine: Machine) -> float:
    """The same as a ring, which nobody should use for one number."""
    return 2 * (ranks - 1) * machine.hop


def pause_seconds(ranks: int, machine: Machine) -> float:
    """How long training waits for a checkpoint: each rank copies its share to the host."""
    return machine.parameters * machine.bytes_each / ranks / machine.host_copy


def write_seconds(ranks: int, machine: Machine) -> float:
    """How long it takes beside training until it is on the storage."""
    nodes = math.ceil(ranks / machine.per_node)
    return (
        machine.parameters * machine.bytes_each / min(nodes * machine.node_write, machine.storage)
    )


def rendezvous_seconds(ranks: int, machine: Machine) -> float:
    """Greeting (6 requests a rank), the addresses of all for all (gloo), a connection to each."""
    asked = 8 * ranks / machine.store_rate + ranks**2 / machine.key_rate
    return asked + machine.connect * ranks


def restart_seconds(ranks: int, machine: Machine) -> float:
    """From a death to the first step after it, without the steps that are computed again."""
    read = write_seconds(ranks, machine)
    return machine.notice + machine.start + rendezvous_seconds(ranks, machine) + read


def best_interval(ranks: int, machine: Machine) -> float:
    """Seconds between checkpoints that lose the least: Young, but not shorter than a write."""
    between = 3600 * machine.rank_hours / ranks
    wanted = math.sqrt(2 * pause_seconds(ranks, machine) * between)
    return max(wanted, write_seconds(ranks, machine))


def lost_share(ranks: int, machine: Machine) -> float:
    """Share of the time that goes into pauses, restarts and steps computed again."""
    between, every = 3600 * machine.rank_hours / ranks, best_interval(ranks, machine)
    again = every / 2 + write_seconds(ranks, machine)
    return (
        pause_seconds(ranks, machine) / every + (restart_seconds(ranks, machine) + again) / between
    )


# ---------------------------------------------------------------------- measured here


def _ask(port: int, seconds: float, answers: Any) -> None:
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, is_master=False)
    count, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        store.check(["news"])
        count += 1
    answers.put(count / seconds)


def measure_store(clients: int) -> float:
    """Requests per second that one store answers to so many processes, ``check`` of one key."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answers: Any = _context().Queue()
    rates = _together(clients, _ask, (server.port, _SECONDS, answers), answers)
    return sum(rates)


def measure_keys() -> float:
    """Keys per second that one client reads, 256 with one request."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client: Any = TCPStore("127.0.0.1", server.port, is_master=False)
    keys = [f"address/{number}" for number in range(256)]
    client.multi_set(keys, ["x" * 64] * len(keys))
    count, until = 0, time.perf_counter() + _SECONDS
    while time.perf_counter() < until:
        client.multi_get(keys)
        count += len(keys)
    return count / _SECONDS


def _reduce(rank: int, world: int, folder: str, answers: Any) -> None:
    import torch
    from torch import distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=world
    )
    flag, took = torch.zeros(4), list[float]()
    for _ in range(_REDUCTIONS):
        began = time.perf_counter()
        distributed.all_reduce(flag)
        took.append(time.perf_counter() - began)
    distributed.destroy_process_group()
    answers.put(statistics.median(took[20:]))


def measure_reduce(ranks: int) -> float:
    """Median seconds of an all-reduce of four numbers by gloo, all ranks on this machine."""
    answers: Any = _context().Queue()
    with tempfile.TemporaryDirectory() as folder:
        return max(_together(ranks, _reduce, (ranks, folder, answers), answers, numbered=True))


def _context() -> Any:
    """Processes that are quick to start and inherit no thread of a store."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed"])
    return context


def _together(
    count: int,
    target: Callable[..., None],
    args: tuple[Any, ...],
    answers: Any,
    *,
    numbered: bool = False,
) -> list[float]:
    context = _context()
    every = [
        context.Process(target=target, args=(number, *args) if numbered else args)
        for number in range(count)
    ]
    for one in every:
        one.start()
    found = [float(answers.get(timeout=120)) for _ in every]
    for one in every:
        one.join()
    return found


# ---------------------------------------------------------------------- tables


def reported(seconds: float) -> str:
    """A time as people read it."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def tables(machine: Machine, sizes: Sequence[int] = SIZES) -> str:
    """The model at all sizes."""
    lines = [
        "| ranks | polling, of the store's rate | event: all know the step | all-reduce, tree "
        "| as a ring | pause for a checkpoint | until it is stored | rendezvous | restart "
        "| best interval | lost |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for n in sizes:
        full = polling_load(n, machine)
        cells = [
            f"{n:,}", f"{100 * full:.1f} %",
            reported(event_seconds(n, machine)) if full < 1 else "never: the store is full",
            reported(reduce_seconds(n, machine)), reported(ring_seconds(n, machine)),
            reported(pause_seconds(n, machine)), reported(write_seconds(n, machine)),
            reported(rendezvous_seconds(n, machine)), reported(restart_seconds(n, machine)),
            f"{best_interval(n, machine) / 60:.1f} min", f"{100 * lost_share(n, machine):.2f} %",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def checks(rates: dict[int, float], reductions: dict[int, float]) -> str:
    """What was measured beside what the model says with the parameters taken from its ends."""
    trip, most = 1 / rates[min(rates)], max(rates.values())
    lines = ["| | measured | model | off by |", "|---|---|---|---|"]
    for clients, rate in rates.items():
        model = min(clients / trip, most)
        lines.append(_row(f"store, {clients} clients, requests/s", rate, model, "{:,.0f}".format))
    hop = reductions[2] / 2
    for ranks, seconds in reductions.items():
        model = reduce_seconds(ranks, Machine(hop=hop))
        lines.append(_row(f"gloo all-reduce, {ranks} ranks", seconds, model, reported))
    return "\n".join(lines)


def _row(name: str, measured: float, model: float, show: Callable[[float], str]) -> str:
    return f"| {name} | {show(measured)} | {show(model)} | {100 * (model / measured - 1):+.0f} % |"


def main() -> None:
    """Measure, check, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-measure", action="store_true", help="take the store's rate as given")
    for one in dataclasses.fields(Machine):
        parser.add_argument(f"--{one.name.replace('_', '-')}", type=type(one.default), default=None)
    given = vars(parser.parse_args())
    measure = not given.pop("no_measure")
    machine = Machine(**{key: value for key, value in given.items() if value is not None})
    if measure:
        # The best of some rounds: the others say how busy the machine was.
        rates = {n: max(measure_store(n) for _ in range(_ROUNDS)) for n in CLIENTS}
        reductions = {n: min(measure_reduce(n) for _ in range(_ROUNDS)) for n in RANKS}
        print(f"Measured on {os.cpu_count()} cores:\n\n{checks(rates, reductions)}\n")
        if given["store_rate"] is None:
            machine = dataclasses.replace(machine, store_rate=round(max(rates.values()), -2))
        if given["key_rate"] is None:
            keys = max(measure_keys() for _ in range(_ROUNDS))
            machine = dataclasses.replace(machine, key_rate=round(keys, -3))
        if given["store_trip"] is None:
            machine = dataclasses.replace(machine, store_trip=round(1 / rates[1], 6))
    parameters = ", ".join(f"{key}={value:g}" for key, value in dataclasses.asdict(machine).items())
    print(f"Model with {parameters}:\n\n{tables(machine)}")


if __name__ == "__main__":
    main()

"""What a checkpoint over ranks costs: the copy at the step, the writing, reading and exporting.

    python benchmarks/sharded_checkpoints.py --ranks 2 --megabytes 128

Ranks are processes with a share each of a state of weights and two moments, on this machine. The
same bytes in one file by one process (``checkpoint.file``) stand beside it.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from holdfast.checkpoint.copying import copied
from holdfast.checkpoint.file import load, save
from holdfast.checkpoint.record import verify
from holdfast.checkpoint.sharded.agreement import Ranks
from holdfast.checkpoint.sharded.loading import load_folder
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.sharded.saving import Share, save_share, share_of
from holdfast.checkpoint.tree import flatten

_LAYERS = 24

# In a process of its own, whose peak of memory is set back first.
_EXPORT = """
import pathlib, sys, time
from holdfast.checkpoint.sharded.export import export_tensors
def memory(word):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(word)[1].split()[0]) // 1024
pathlib.Path("/proc/self/clear_refs").write_text("5")
before, began = memory("VmRSS:"), time.perf_counter()
export_tensors(*map(pathlib.Path, sys.argv[1:]))
print(time.perf_counter() - began, memory("VmHWM:") - before)
"""


def _state(rank: int, world: int, megabytes: int) -> tuple[dict[str, Any], dict[str, PartPlace]]:
    """The part of one rank: weights and the moments of Adam, sharded by rows."""
    rows = megabytes * 2**20 // (3 * _LAYERS * 4 * 1024)
    share = -(-rows // world)
    begin = min(rank * share, rows)
    size = min(share, rows - begin)
    place = PartPlace((rows, 1024), (begin, 0), (size, 1024))
    weights = {f"{i}": torch.randn(size, 1024) for i in range(_LAYERS)}
    moments = {
        i: {"exp_avg": torch.randn(size, 1024), "exp_avg_sq": torch.rand(size, 1024)}
        for i in range(_LAYERS)
    }
    tree = {"models": {"m": weights}, "optimizers": [{"state": moments}]}
    names = [f"models.m.{i}" for i in range(_LAYERS)]
    names += [f"optimizers.0.state.{i}.{k}" for i in range(_LAYERS) for k in moments[i]]
    return tree, dict.fromkeys(names, place)


def _rank(rank: int, world: int, megabytes: int, folder: str, repeats: int) -> None:
    """One rank: says for each save how long the training and how long the thread was held."""
    torch.set_num_threads(1)
    ranks = Ranks(rank, world, distributed.FileStore(f"{folder}/store", world))
    tree, places = _state(rank, world, megabytes)
    for step in range(1, repeats + 1):
        began = time.perf_counter()
        share = share_of(tree, ranks, places)
        tensors, _ = copied(share.tensors)
        copy = time.perf_counter() - began
        began = time.perf_counter()
        share = Share(share.skeleton, tensors, share.places, rank)
        save_share(share, ranks.begin(step), Path(folder), {"step": step})
        print(rank, copy, time.perf_counter() - began, flush=True)


def _median(call: Callable[[], object], repeats: int) -> float:
    times: list[float] = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _measure(world: int, megabytes: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, "--ranks", str(world), "--megabytes", str(megabytes)]
        words += ["--repeats", str(repeats), "--folder", folder]
        ranks = [
            subprocess.Popen([*words, "--rank", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(world)
        ]
        lines = [line.split() for one in ranks for line in one.communicate()[0].splitlines()]
        copies = [float(copy) for _, copy, _ in lines]
        writes = [float(seconds) for rank, _, seconds in lines if rank == "0"]
        path = Path(folder) / f"step-{repeats:010d}"
        index, size = (
            (path / "index.json").stat().st_size,
            sum(one.stat().st_size for one in path.iterdir()),
        )
        print(f"ranks                      {world}")
        print(f"state                      {size / 2**20:.0f} MiB, index {index / 1024:.0f} KiB")
        print(f"copy at the step           {1e3 * statistics.median(copies):.0f} ms per rank")
        print(f"written by all             {statistics.median(writes):.2f} s")
        print(f"verify                     {_median(lambda: verify(path), repeats):.2f} s")
        print(f"load, whole                {_median(lambda: load(path), repeats):.2f} s")
        half = _state(0, 2, megabytes)[1]

        def one_of_two() -> None:
            load_folder(path, place=lambda name, shape: half.get(name) or PartPlace.whole(shape))

        print(f"load, one rank of two      {_median(one_of_two, repeats):.2f} s")
        target = Path(folder) / "all.safetensors"
        grown = subprocess.run(
            [sys.executable, "-c", _EXPORT, path, target],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.split()
        print(f"export                     {float(grown[0]):.2f} s, {grown[1]} MiB of memory")
        tree, _ = _state(0, 1, megabytes)
        single = Path(folder) / "step-0000000001.r0.safetensors"
        parts = flatten(tree)
        wrote = _median(lambda: save(single, *parts, {"step": 1}), repeats)
        print(f"one file by one process    {wrote:.2f} s to write, ", end="")
        print(f"{_median(lambda: load(single), repeats):.2f} s to load")


def main() -> None:
    """Measure, or be one of the ranks that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", default="")
    parser.add_argument("--rank", type=int, default=-1)
    args = parser.parse_args()
    if args.rank >= 0:
        _rank(args.rank, args.ranks, args.megabytes, args.folder, args.repeats)
    else:
        _measure(args.ranks, args.megabytes, args.repeats)


if __name__ == "__main__":
    main()

"""Samples per second of a stream read in chunks: one by one and collated, or in whole batches.

    OMP_NUM_THREADS=1 python benchmarks/stream_batches.py
    OMP_NUM_THREADS=1 python benchmarks/stream_batches.py --batch 1024 --workers 2 --rounds 8

Shards are tensors in memory, so that reading a chunk costs one copy of it and the rest is the cost
of making batches. Nothing is trained. The two forms take turns; the best round of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from holdfast.training import DataSettings, Gathered, Place, Streamed, collate
from holdfast.training.data.loading import make_loader


class Shard:
    """Samples of a calorimeter: two numbers of each of 4760 sensors, and a label."""

    def __init__(self, count: int) -> None:
        self._x, self._y = torch.randn(count, 4760, 2), torch.arange(count)

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> Any:
        return self._x[index], self._y[index]

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        which = slice(indices[0], indices[-1] + 1)
        return Gathered((self._x[which].clone(), self._y[which].clone()), len(indices))


def loaders(given: argparse.Namespace) -> dict[str, DataLoader[Any]]:
    """The two forms over the same shards, training and in order."""
    place, stream = Place(torch.device("cpu")), Streamed([Shard(given.samples // 2)] * 2)
    settings = DataSettings(batch=given.batch, chunk=given.chunk)
    found: dict[str, DataLoader[Any]] = {}
    for train in (True, False):
        name = "training" if train else "in order"
        own = stream.joined(place, given.batch, seed=0, train=train, chunk=given.chunk)
        found[f"{name}, one by one"] = DataLoader(
            own,
            given.batch,
            num_workers=given.workers,
            collate_fn=collate,
            persistent_workers=bool(given.workers),
        )
        found[f"{name}, whole batches"] = make_loader(
            stream, settings, place, train=train, seed=0, workers=given.workers
        )
    return found


def rate(loader: Iterable[Any]) -> float:
    """Samples per second of one pass."""
    began, count = time.perf_counter(), 0
    for _, y in loader:
        count += len(y)
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--samples", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--chunk", type=int, default=2048)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    made = loaders(given)
    rates: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(given.rounds):
        for name, loader in made.items():
            rates[name].append(rate(loader))
    print(f"batch {given.batch}, chunk {given.chunk}, {given.workers} workers")
    for name, found in rates.items():
        print(f"{name:24} {max(found):9,.0f} samples/s (slowest round {min(found):,.0f})")


if __name__ == "__main__":
    main()

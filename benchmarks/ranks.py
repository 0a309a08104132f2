"""What comparing ranks costs: checksums of weights in a rank, and the comparison beside it.

    python benchmarks/ranks.py

CPU time, so that other processes on the machine do not count; one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from sys import path

import numpy as np
import torch

path.insert(0, str(Path(__file__).parents[1]))

from tests.rank_lanes import lane

from holdfast.detectors import ALL
from holdfast.detectors._ranks import RankDetector
from holdfast.probes.replicas import EVERY, checksums

MODELS = {
    "4 tensors, 1.2 k weights": [(16, 64), (64,), (64, 1), (1,)],
    "300 tensors, 0.3 M weights": [(32, 32)] * 300,
    "148 tensors, 10 M weights": [(260, 260)] * 148,
}
RUNS = ((2, 10_000), (8, 100_000), (64, 10_000))


def milliseconds(work: Callable[[], object], times: int) -> float:
    """Median CPU time of some work."""
    spent: list[float] = []
    for _ in range(times):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return 1e3 * float(np.median(spent))


def main() -> None:
    torch.set_num_threads(1)
    print("| model | ms per look | µs per step |\n|---|---|---|")
    for name, shapes in MODELS.items():
        weights = [torch.randn(shape) for shape in shapes]
        checksums(weights)
        took = milliseconds(lambda weights=weights: checksums(weights), 15)
        print(f"| {name} | {took:.3g} | {1e3 * took / EVERY:.3g} |")
    judges = [detector() for detector in ALL if issubclass(detector, RankDetector)]
    print("\n| ranks | rows each | ms | findings |\n|---|---|---|---|")
    for ranks, rows in RUNS:
        lanes = [lane(rank, rows, facts={"group": ranks}) for rank in range(ranks)]
        found: list[object] = []
        took = milliseconds(
            lambda lanes=lanes, found=found: found.extend(
                finding for judge in judges for finding in judge.compare(lanes)
            ),
            1,
        )
        print(f"| {ranks} | {rows:,} | {took:.0f} | {len(found)} |")


if __name__ == "__main__":
    main()

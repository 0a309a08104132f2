"""Start a training on two ranks from one script, on the CPU."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing

RANKS = 2


def run_ranks(train: Callable[[int], None]) -> None:
    """Call ``train(rank)`` in a process for each rank, all of one process group.

    A real run is started with torchrun; a catalogue must be able to run each fault as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        multiprocessing.spawn(_rank, (train, store), nprocs=RANKS)  # pyright: ignore[reportPrivateImportUsage]


def _rank(rank: int, train: Callable[[int], None], store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    train(rank)
    dist.destroy_process_group()

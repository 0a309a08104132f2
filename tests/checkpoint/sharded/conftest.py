"""Ranks that are threads: each has local parts with their places, and all save together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from holdfast.checkpoint.record import WrittenCheckpoint
from holdfast.checkpoint.sharded.agreement import Ranks
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.sharded.saving import save_share, share_of

Outcome = WrittenCheckpoint | Exception


def whole(value: float = 1.0) -> dict[str, Tensor]:
    """The sharded tensors of a small state: uneven, of several dtypes, sharded in dimension 0."""
    numbers = torch.arange(28.0).reshape(7, 4) * value
    return {
        "models.m.w": numbers,
        "models.m.half": (numbers[:, 0] / 3).bfloat16(),
        "optimizers.0.state.0.exp_avg": numbers.double() / 7,
    }


def part(rank: int, world: int, value: float = 1.0) -> tuple[dict[str, Any], dict[str, PartPlace]]:
    """The state of one rank, and the places of its local parts."""
    local: dict[str, Tensor] = {}
    places: dict[str, PartPlace] = {}
    for name, tensor in whole(value).items():
        size = -(-len(tensor) // world)
        begin = min(rank * size, len(tensor))
        local[name] = tensor[begin : begin + size].clone()
        offset = (begin, *([0] * (tensor.dim() - 1)))
        places[name] = PartPlace(tuple(tensor.shape), offset, tuple(local[name].shape))
    tree = {
        "models": {
            "m": {
                "w": local["models.m.w"],
                "half": local["models.m.half"],
                "mean": torch.tensor([float(rank), value]),
                "none": torch.empty(0, 3),
            }
        },
        "optimizers": [
            {
                "parameters": [["m.w", "float32", (7, 4)]],
                "state": {0: {"exp_avg": local["optimizers.0.state.0.exp_avg"],
                              "step": torch.tensor(value)}},
                "groups": [{"lr": 0.1, "betas": (0.9, 0.999)}],
            }
        ],
        "dice": {
            "torch": torch.arange(4, dtype=torch.uint8) + rank, "python": (3, (rank, 7), None)
        },
        "position": {"epoch": 2, "batches": 5},
    }  # fmt: skip
    return tree, places


def save_as_threads(
    folder: Path,
    world: int,
    step: int = 5,
    value: float = 1.0,
    *,
    store: Any = None,
    missing: Mapping[int, str] | None = None,
    patience: float = 20.0,
    change: Callable[[int, dict[str, Any]], object] = lambda rank, tree: None,
    **meta: Any,
) -> list[Outcome]:
    """Save with ``world`` ranks; those ``missing`` say why, or nothing if that is empty."""
    store = distributed.HashStore() if store is None else store
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Any] = [None] * world

    def save(rank: int) -> None:
        ranks = Ranks(rank, world, store)
        save = ranks.begin(step)
        if rank in (missing or {}):
            if (missing or {})[rank]:
                save.fail((missing or {})[rank])
            return
        tree, places = part(rank, world, value)
        change(rank, tree)
        try:
            share = share_of(tree, ranks, places)
            outcomes[rank] = save_share(share, save, folder, {"step": step, **meta}, patience)
        except Exception as error:
            outcomes[rank] = error

    threads = [threading.Thread(target=save, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.fixture(scope="session")
def state_of() -> Callable[..., tuple[dict[str, Any], dict[str, PartPlace]]]:
    """``state_of(rank, world)``."""
    return part


@pytest.fixture(scope="session")
def save_all() -> Callable[..., list[Outcome]]:
    """``save_all(folder, 4, step=5)``."""
    return save_as_threads


@pytest.fixture(scope="session")
def tensors_of() -> Callable[..., dict[str, Tensor]]:
    """The whole tensors that the parts are cut from."""
    return whole

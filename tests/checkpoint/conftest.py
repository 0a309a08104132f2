"""A small state as a training has it, and a store with some checkpoints on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint.file import WrittenCheckpoint, save
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tree import flatten


def state(value: float = 1.0) -> dict[str, Any]:
    """A model, an optimizer and more, every number of which is ``value``."""
    return {
        "models": {"model": {"weight": torch.full((4, 3), value), "bias": torch.full((4,), value)}},
        "optimizers": [{"state": {0: {"exp_avg": torch.full((4, 3), value), "step": 3}}}],
        "dice": {"torch": torch.arange(8, dtype=torch.uint8)},
    }


@pytest.fixture(scope="session")
def make_state() -> Callable[..., dict[str, Any]]:
    """``make_state(2.0)``."""
    return state


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """An empty store."""
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture
def put(store: CheckpointStore) -> Callable[..., WrittenCheckpoint]:
    """Puts a checkpoint on the store: ``put(1200, 2.0, rank=1, metrics={"loss": 0.5})``."""

    def put_one(
        step: int, value: float = 1.0, *, compress: bool = False, **meta: Any
    ) -> WrittenCheckpoint:
        store.folder.mkdir(parents=True, exist_ok=True)
        path = store.path(step, meta.get("rank", 0))
        return save(path, *flatten(state(value)), {"step": step, **meta}, compress=compress)

    return put_one


def _flip(path: Path, at: int = -1, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


@pytest.fixture(scope="session")
def flip() -> Callable[..., None]:
    """Changes one bit of a file: ``flip(path, at=100, bit=3)``."""
    return _flip

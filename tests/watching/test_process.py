"""The guard of ``holdfast run`` in a process that runs already: in, out, and what is in between."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import holdfast
from holdfast.boot import session
from holdfast.run import LaneReader
from holdfast.watching.process import watch_process


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    before = torch.autograd.backward
    yield
    assert session.current() is None and torch.autograd.backward is before


def train(poisoned: int = 21, **given: Any) -> torch.optim.Optimizer:
    """A loop that knows nothing of us."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    x = torch.randn(64, 4)
    x[poisoned] = math.nan
    for some, y in DataLoader(TensorDataset(x, torch.randn(64, 1)), 8, **given):
        opt.zero_grad()
        (net(some) - y).square().mean().backward()
        opt.step()
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    return opt


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_knows_nothing_of_us(tmp_path: Path, workers: int) -> None:
    with watch_process(run_dir=tmp_path / "run", quiet=True) as watched:
        train(num_workers=workers, multiprocessing_context="fork" if workers else None)
    assert watched.skipped == 1
    (finding,) = watched.findings
    assert finding.code == "NUM005" and "21" in finding.message


def test_an_optimizer_that_outlives_it_still_calls_its_hooks(tmp_path: Path) -> None:
    with watch_process(run_dir=tmp_path / "run", quiet=True):
        opt = train()
    called: list[object] = []
    opt.register_step_post_hook(lambda *given: called.append(given))
    opt.step()
    assert len(called) == 1


class Files(Dataset[torch.Tensor]):
    """One of them cannot be read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 21:
            raise OSError("truncated file")
        return torch.ones(4) * index / 64


def test_a_sample_that_cannot_be_read_is_replaced_in_its_worker(tmp_path: Path) -> None:
    with watch_process(run_dir=tmp_path / "run", quiet=True) as watched:
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        loader = DataLoader(Files(), 8, True, num_workers=2, multiprocessing_context="fork")
        for x in loader:
            opt.zero_grad()
            net(x).square().mean().backward()
            opt.step()
    (finding,) = watched.findings
    assert finding.code == "RUN003" and "21" in finding.message


def test_a_second_one_ends_the_first(tmp_path: Path) -> None:
    first = watch_process(run_dir=tmp_path / "first", quiet=True)
    train()
    with watch_process(run_dir=tmp_path / "second", quiet=True) as second:
        train(poisoned=63)
    assert (first.skipped, second.skipped) == (1, 1)
    assert len(LaneReader(first.run, "r0").steps()) == 8  # type: ignore[arg-type]


def test_a_watch_inside_uses_the_same_run(tmp_path: Path) -> None:
    with watch_process(run_dir=tmp_path / "run", quiet=True) as watched:
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        with holdfast.watch(net, opt, say=print) as watch:
            for x in watch([torch.ones(2, 4)] * 3):
                watch.backward(net(x).mean())
                watch.step()
        assert watch.run is watched.run
    assert len(LaneReader(watched.run, "r0").steps()) == 3  # type: ignore[arg-type]


def test_an_exception_leaves_the_last_state(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyError),
        watch_process(run_dir=tmp_path / "run", quiet=True),
    ):
        train()
        raise KeyError("mine")
    assert list((tmp_path / "run" / "checkpoints").iterdir())

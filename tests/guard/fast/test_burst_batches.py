"""Batches of a burst: named, timed and handed out as outside of one."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import holdfast
from holdfast.guard.engine import Engine
from holdfast.guard.fast.burst import StepBurst
from holdfast.guard.fast.bursts import StepBursts
from holdfast.probes.batches import LoaderBatches

from .. import host_kernels
from ..conftest import MakeEngine, MemoryRecorder

STEPS, SIZE = 76, 4
BAD = (50, 51, 67)


class Samples(Dataset[Tensor]):
    """Some cannot be trained on, one perhaps not read, or not found."""

    def __init__(self, unreadable: int = -1, lost: int = -1) -> None:
        self._unreadable, self._lost = unreadable, lost

    def __len__(self) -> int:
        return STEPS * SIZE

    def __getitem__(self, index: int) -> Tensor:
        if int(index) == self._unreadable:
            raise ValueError("broken sample")
        if int(index) == self._lost:
            raise FileNotFoundError(index)
        x = torch.randn(4, generator=torch.Generator().manual_seed(int(index)))
        return x * torch.nan if index // SIZE in BAD and index % SIZE == 2 else x


class Odd:
    """A sampler that gives the same list each time, filled anew with numbers or with tensors."""

    def __iter__(self) -> Iterator[list[Any]]:
        drawn: list[Any] = []
        for step in range(STEPS):
            numbers = range(step * SIZE, (step + 1) * SIZE)
            drawn[:] = torch.tensor(numbers) if step % 3 else numbers
            yield drawn

    def __len__(self) -> int:
        return STEPS


def train(
    loader: DataLoader[Tensor], each: Callable[[int], None] = lambda step: None
) -> dict[str, Tensor]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for step, x in enumerate(loader):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        each(step)
    return model.state_dict()


@pytest.fixture
def make(make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Engine]:
    host_kernels.install(monkeypatch)
    return lambda: make_engine(device_path=True, budget=1.0, explain=False)


def memory_of(engine: Engine) -> MemoryRecorder:
    return engine.memory  # type: ignore[attr-defined]


@pytest.mark.parametrize("workers", [0, 1])
def test_they_are_named_and_timed_as_outside_of_one(
    make: Callable[[], Engine],
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
) -> None:
    # What workers are sent is read when the sampler has gone on: there it needs lists of its own.
    order = {"batch_size": SIZE, "sampler": range(STEPS * SIZE)} if workers else {}
    how: dict[str, Any] = order or {"batch_sampler": Odd()}
    lost = 34 * SIZE + 1 if workers else -1
    began, original = list[bool](), StepBurst.step_begins
    monkeypatch.setattr(
        StepBurst, "step_begins", lambda *about: began.append(original(*about)) or began[-1]
    )
    runs: list[MemoryRecorder] = []
    for _ in range(2):
        engine = make()
        train(DataLoader(Samples(lost=lost), num_workers=workers, **how))
        engine.close()
        assert not engine.off
        runs.append(memory_of(engine))
        monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
    short, long = (run.rows() for run in runs)
    assert sum(began) > 15
    assert runs[0].batches == runs[1].batches
    named = [range(step * SIZE, (step + 1) * SIZE) for step in BAD]
    assert [one["indices"] for one in runs[0].batches if one["bad"]] == list(map(list, named))
    for column in ("loss", "grad_norm", "batch", "worker", "input_bad"):
        np.testing.assert_array_equal(short[column], long[column], err_msg=column)
    unread = [[data["index"] for *_, data in run.events if "most" in data] for run in runs]
    assert unread[0] == unread[1] == ([lost] if workers else [])
    assert (short["worker"] == workers - 1).all()
    assert (short["data_wait"][1:] > 0).all() and (short["guard"] > 0).all()


def test_what_fails_with_a_batch_is_switched_off(
    make: Callable[[], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()

    def breaks(step: int) -> None:
        # The next batch is one of a burst: nothing else is due before it.
        inside = engine.state.fast.waits and step < engine.state.recovery.look_at
        if inside and step > 30:
            monkeypatch.setattr(LoaderBatches, "handed_out", None)

    guarded = train(DataLoader(Samples(), batch_size=SIZE), breaks)
    assert engine.off == {"loader probe"}
    # Bad steps are skipped as before.
    assert all(value.isfinite().all() for value in guarded.values())
    engine.close()
    assert len(memory_of(engine).rows()) == STEPS


def test_orders_are_heard_at_its_end(make: Callable[[], Engine]) -> None:
    engine, heard = make(), list[int]()
    began = 0

    def order(step: int) -> None:
        nonlocal began
        memory = memory_of(engine)
        if step > 40 and not began and engine.state.fast.bursts.now is not None:
            began = step
            memory.ring.has_message = True
            memory.orders = lambda: heard.append(engine.steps) or []  # type: ignore[method-assign]

    train(DataLoader(Samples(), batch_size=SIZE), order)
    assert began and heard[0] - began <= 9


def lines(error: BaseException) -> list[tuple[str, str]]:
    """The functions that it came through, without ours."""
    ours = str(Path(holdfast.__file__).parent)
    frames = traceback.extract_tb(error.__traceback__)
    return [(one.filename, one.name) for one in frames if not one.filename.startswith(ours)]


def test_an_error_comes_out_of_the_same_lines(make: Callable[[], Engine]) -> None:
    found: list[list[tuple[str, str]]] = []
    for _ in range(2):
        with pytest.raises(ValueError, match="broken sample") as caught:
            train(DataLoader(Samples(unreadable=50 * SIZE), batch_size=SIZE))
        found.append(lines(caught.value))
        engine = make()
    assert ("__getitem__" in dict(map(reversed, found[0]))) and not engine.off  # type: ignore[arg-type]
    assert found[0] == found[1]

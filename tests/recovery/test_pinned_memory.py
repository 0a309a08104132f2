"""Pinned memory for snapshots is made beside the training, which never waits for it."""

from __future__ import annotations

import gc
import itertools
import mmap
import threading
import time

import pytest
import torch
from torch import nn

from holdfast.checkpoint.training_state import TrainingState
from holdfast.config import RollbackSettings
from holdfast.recovery import pinned_memory, snapshots
from holdfast.recovery.snapshots import Snapshots


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Tensors on the host count as those of a GPU, and memory for them comes when this is set."""
    opened = threading.Event()

    def slow(address: int, size: int) -> None:
        assert opened.wait(30)
        if size > 10_000:
            raise RuntimeError("cudaHostRegister: out of memory")

    monkeypatch.setattr(pinned_memory, "_pin", slow)
    monkeypatch.setattr(pinned_memory, "_let_go", lambda addresses: None)
    monkeypatch.setattr(snapshots, "_gpu", lambda tensors: torch.device("cpu"))
    return opened


def training_state(width: int = 4) -> TrainingState:
    model = nn.Linear(width, width)
    return TrainingState({"model": model}, [torch.optim.SGD(model.parameters(), lr=0.1)])


def wait_until_due(taken: Snapshots, step: int) -> None:
    for _ in range(3000):
        if taken.due(step):
            return
        time.sleep(0.01)
    raise AssertionError("the room was never made")


def test_a_snapshot_waits_for_its_room_and_training_does_not(gate: threading.Event) -> None:
    own, taken = training_state(), Snapshots(RollbackSettings(every=8))
    assert taken.due(8)
    assert taken.take(own, 8, 1.0, 0) is None
    # Nothing is asked again until there is room, and it is not counted as left out.
    assert not taken.due(9) and not taken.due(900) and taken.dropped == 0
    gate.set()
    wait_until_due(taken, 10)
    snapshot = taken.take(own, 10, 1.0, 0)
    assert snapshot is not None and snapshot.step == 10 and taken.count == 1
    weight = snapshot.state()["models"]["model"]["weight"]
    assert torch.equal(weight, own.state()["models"]["model"]["weight"])


def test_a_model_that_has_grown_meanwhile_gets_a_larger_room(gate: threading.Event) -> None:
    taken = Snapshots(RollbackSettings(every=8))
    taken.take(training_state(4), 8, 1.0, 0)
    gate.set()
    wait_until_due(taken, 9)
    gate.clear()
    larger = training_state(16)
    assert taken.take(larger, 9, 1.0, 0) is None and not taken.due(9)
    gate.set()
    wait_until_due(taken, 10)
    assert taken.take(larger, 10, 1.0, 0) is not None


def test_what_went_wrong_beside_the_training_is_reported(gate: threading.Event) -> None:
    own, taken = training_state(64), Snapshots(RollbackSettings(every=8))
    taken.take(own, 8, 1.0, 0)
    gate.set()
    wait_until_due(taken, 9)
    with pytest.raises(RuntimeError, match="out of memory"):
        taken.take(own, 9, 1.0, 0)


def test_no_tensor_lies_in_two_pieces_and_none_on_another() -> None:
    sizes = [0, 1, 70, 5000, 4096, 3, 20_000, 64, 9]
    found = pinned_memory.plan(sizes, piece=6000)
    assert len(found.pieces) > 2 and found.pieces[0][0] == 0
    for (_, end), (begin, _) in itertools.pairwise(found.pieces):
        assert end == begin and end % mmap.PAGESIZE == 0
    for at, size in zip(found.offsets, sizes, strict=True):
        assert at % 64 == 0
        assert any(begin <= at and at + size <= end for begin, end in found.pieces)
    for (at, size), after in zip(zip(found.offsets, sizes, strict=True), found.offsets[1:]):  # noqa: B905
        assert at + size <= after


def test_the_driver_rests_between_pieces_unless_somebody_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times: list[float] = []

    def slow(address: int, size: int) -> None:
        time.sleep(0.002)
        times.append(time.perf_counter())

    monkeypatch.setattr(pinned_memory, "_pin", slow)
    monkeypatch.setattr(pinned_memory, "_let_go", lambda addresses: None)
    room = pinned_memory.Room(pinned_memory.plan([5000] * 40, piece=4096), torch.device("cpu"))
    while len(times) < 4:
        time.sleep(0.001)
    room.take()
    assert len(times) == 40
    apart = [b - a for a, b in itertools.pairwise(times)]
    assert min(apart[:3]) > 0.018 and sum(apart[5:]) / len(apart[5:]) < 0.018


def test_pinned_memory_is_let_go_once_nothing_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: set[int] = set()
    monkeypatch.setattr(pinned_memory, "_pin", lambda address, size: pinned.add(address))
    monkeypatch.setattr(pinned_memory, "_let_go", pinned.difference_update)
    block = pinned_memory.Room(pinned_memory.plan([5000, 70]), torch.device("cpu")).take()
    view = block[5056:5126].view(torch.uint8)
    del block
    gc.collect()
    assert pinned and not view.any()
    del view
    gc.collect()
    assert not pinned


def test_the_end_of_a_run_waits_for_the_thread(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned: list[int] = []
    given_up = threading.Event()

    def slow(address: int, size: int) -> None:
        pinned.append(size)
        assert given_up.wait(30)

    class Waiting(pinned_memory.Room):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, value)
            if name == "_given_up" and value:
                given_up.set()

    monkeypatch.setattr(pinned_memory, "_pin", slow)
    making = Waiting(pinned_memory.plan([5000] * 100, piece=4096), torch.device("cpu"))
    making.give_up()
    assert making.ready and len(pinned) <= 1, "it went on with the next pieces"
    given_up.clear()
    monkeypatch.setattr(snapshots, "Room", Waiting)
    own, taken = training_state(), Snapshots(RollbackSettings(every=8))
    assert taken.take(own, 8, 1.0, 0) is None
    taken.close()
    assert "holdfast-room" not in {thread.name for thread in threading.enumerate()}

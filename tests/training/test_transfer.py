"""Batches of any shape go to the device; the side stream is used as CUDA asks for it."""

from __future__ import annotations

import contextlib
from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from holdfast.training.data.transfer import (
    Transfer,
    count,
    tensors,
    to_device,
)

META = torch.device("meta")
Pair = namedtuple("Pair", "x y")


@dataclass(frozen=True)
class Sample:
    x: Tensor
    name: str
    more: dict[str, Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    x: Tensor


def test_nested_batches_keep_their_kind_and_what_is_no_tensor() -> None:
    x = torch.ones(2)
    batch = {
        "pair": Pair(x, "a"),
        "list": [x, (x, None)],
        "sample": Sample(x, "b", {"z": x}),
        "slotted": Slotted(x),
        "ordered": OrderedDict(z=x, a=1),
        "text": "abc",
    }
    moved = to_device(batch, META)
    assert {tensor.device for tensor in tensors(moved)} == {META}
    assert len(list(tensors(moved))) == 7
    assert type(moved["pair"]) is Pair and moved["pair"].y == "a"
    assert isinstance(moved["list"][1], tuple) and moved["list"][1][1] is None
    assert moved["sample"].name == "b" and moved["sample"].more["z"].device == META
    assert type(moved["slotted"]) is Slotted
    assert type(moved["ordered"]) is OrderedDict and list(moved["ordered"]) == ["z", "a"]
    assert moved["text"] == "abc"
    assert {tensor.device.type for tensor in tensors(batch)} == {"cpu"}


def test_a_mapping_keeps_its_extras() -> None:
    batch: Any = defaultdict(list, x=torch.ones(1))
    moved = to_device(batch, META)
    assert moved["x"].device == META and moved["missing"] == []


def test_what_moves_itself_decides_which_of_its_tensors_move() -> None:
    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = to_device((packed, torch.ones(2)), torch.device("meta"))
    assert moved[0].data.device == META and moved[0].batch_sizes.device.type == "cpu"


def test_nothing_is_copied_on_the_cpu() -> None:
    batch = {"x": torch.ones(2), "y": [torch.zeros(1)]}
    transfer = Transfer(torch.device("cpu"))
    assert transfer(batch) is batch
    assert to_device(batch, torch.device("cpu")) is batch


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (torch.zeros(5, 2), 5),
        (["names", {"x": torch.zeros(3, 1)}], 3),
        (Sample(torch.zeros(4), "a"), 4),
        (torch.tensor(1.0), 1),
        ("none", 1),
        ([], 1),
    ],
)
def test_samples_are_counted_by_the_first_tensor(batch: Any, expected: int) -> None:
    assert count(batch) == expected


class Stream:
    """Stands for a CUDA stream and writes down what is asked of it."""

    def __init__(self, name: str, reported: list[str]) -> None:
        self.name = name
        self.reported = reported

    def record_event(self) -> str:
        self.reported.append(f"{self.name} records")
        return f"event of {self.name}"

    def wait_event(self, event: str) -> None:
        self.reported.append(f"{self.name} waits for {event}")


class OnDevice(Tensor):
    """A tensor that says it lies on a GPU."""

    reported: list[str]

    @property
    def is_cuda(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return True

    def record_stream(self, stream: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.reported.append(f"a tensor is used on {stream.name}")


class OnHost(Tensor):
    """A tensor that is copied to a device that is not there."""

    reported: list[str]

    def to(self, *where: Any, **how: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.reported.append(f"copied to {where[0]}, {how}")
        moved = torch.ones(1).as_subclass(OnDevice)
        moved.reported = self.reported
        return moved


class Own:
    """An object that moves itself."""

    def __init__(self, reported: list[str]) -> None:
        self.reported = reported

    def to(self, device: torch.device, non_blocking: bool) -> Own:
        self.reported.append("moves itself")
        return self


def test_the_main_stream_waits_for_the_copy_and_the_memory_is_kept_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[str] = []
    main = Stream("main", reported)

    @contextlib.contextmanager
    def stream(which: Stream) -> Iterator[None]:
        reported.append(f"on {which.name}")
        yield
        reported.append(f"off {which.name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("side", reported))
    x = torch.ones(1).as_subclass(OnHost)
    x.reported = reported
    transfer = Transfer(torch.device("cuda", 0))
    batch = transfer([x, Own(reported)])
    assert isinstance(batch[0], OnDevice)
    assert reported == [
        "on side",
        "copied to cuda:0, {'non_blocking': True}",
        "on main",
        "moves itself",
        "off main",
        "side records",
        "off side",
        "main waits for event of side",
        "a tensor is used on main",
    ]


@pytest.mark.gpu
def test_batches_arrive_whole_on_a_gpu_that_is_busy() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    transfer = Transfer(device)
    weights = torch.randn(2048, 2048, device=device)
    sums = []
    for number in range(50):
        batch = transfer({"x": torch.full((1 << 20,), float(number)).pin_memory(), "n": number})
        for _ in range(3):
            weights = torch.tanh(weights @ weights)
        sums.append(batch["x"].mean())
        del batch  # its memory is free for the next one only when the kernels are done with it
    assert torch.stack(sums).tolist() == list(range(50))

"""Loaders of the trainer: the same batches however they are loaded, on the CPU, and resumed."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import holdfast
from holdfast.config import from_dict, load
from holdfast.errors import SettingsError, UsageError
from holdfast.run import LaneReader
from holdfast.training.data import loading
from holdfast.training.data.loading import (
    DataSettings,
    Loader,
    make_loader,
    start_method,
)
from holdfast.training.device import Place

CPU = Place(torch.device("cpu"))


class Made(Dataset[Any]):
    """Samples made by factory functions, with a random number, as transforms do."""

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError
        return torch.tensor([float(index)]), torch.rand(1), torch.zeros(1)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        while True:
            yield torch.ones(1)


def make(dataset: Any = None, *, workers: int = 0, train: bool = True, **given: Any) -> Loader:
    place = given.pop("place", CPU)
    collate_fn = given.pop("collate_fn", None)
    settings = DataSettings(**{"batch": 4, **given})
    return make_loader(
        Made() if dataset is None else dataset,
        settings,
        place,
        train=train,
        seed=1,
        workers=workers,
        collate_fn=collate_fn,
    )


def seen(loader: Any) -> list[list[float]]:
    return [batch[0].flatten().tolist() for batch in loader]


def flat(loader: Any) -> list[float]:
    return [value for batch in seen(loader) for value in batch]


@pytest.fixture
def default_meta() -> Iterator[None]:
    """A default device that shows up wherever it leaks to."""
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def test_workers_change_neither_the_batches_nor_the_random_numbers_of_the_loop() -> None:
    data = TensorDataset(torch.arange(22.0))  # one that draws nothing itself
    untouched = torch.get_rng_state()
    results = []
    for workers in (0, 1, 2):
        loader = make(data, workers=workers)
        results.append([])
        for epoch in range(2):
            loader.set_epoch(epoch)
            results[-1].append(seen(loader))
        loader.close()
    assert results[0] == results[1] == results[2]
    assert results[0][0] != results[0][1]
    assert torch.equal(torch.get_rng_state(), untouched)


def test_a_validation_is_in_order_and_complete() -> None:
    assert flat(make(train=False, drop_last=True)) == list(range(22))


def test_every_rank_loads_its_own_part() -> None:
    parts = [make(place=Place(CPU.device, rank, 2, rank)) for rank in range(2)]
    assert len(parts[0]) == len(parts[1]) == 6
    loaded = [flat(part) for part in parts]
    assert sorted(loaded[0] + loaded[1]) == list(range(22))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_default_device_does_not_leak_into_loading(default_meta: None, workers: int) -> None:
    loader = make(workers=workers)
    expected = {float(index) for index in range(22)}
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches = list(loader)
        assert {part.device.type for batch in batches for part in batch} == {"cpu"}
        assert {value for batch in batches for value in batch[0].flatten().tolist()} == expected
    loader.close()
    assert torch.zeros(1).device.type == "meta"  # the user's choice stands


def test_a_default_device_does_not_leak_into_streams(default_meta: None) -> None:
    batch = next(iter(make(Endless())))
    assert batch.device.type == "cpu" and batch.shape == (4, 1)


def test_a_default_device_of_a_block_does_not_leak_into_a_forked_worker() -> None:
    with torch.device("meta"):
        loader = make(workers=1, start="fork")
        assert {part.device.type for batch in loader for part in batch} == {"cpu"}
    loader.close()


def test_a_collate_function_gets_the_samples() -> None:
    loader = make(collate_fn=len)
    assert list(loader) == [4, 4, 4, 4, 4, 2]


def test_batches_are_pinned_only_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Place(torch.device("cuda", 0))
    assert not make(place=CPU).pin_memory
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert make(place=gpu).pin_memory
    assert not make(place=gpu, pin=False).pin_memory
    assert not make(place=CPU).pin_memory


def test_settings_of_workers_reach_the_loader() -> None:
    loader = make(workers=2, prefetch=3, persistent=False, timeout=7.0, start="spawn")
    assert (loader.num_workers, loader.prefetch_factor, loader.timeout) == (2, 3, 7.0)
    assert not loader.persistent_workers
    context = loader.multiprocessing_context
    assert context is not None and context.get_start_method() == "spawn"
    assert loader.why == "spawn: data.start says so"


def test_the_start_method_is_chosen_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading.sys, "platform", "linux")
    assert start_method("auto", Made())[0] == "fork"
    name, why = start_method("auto", Made(), compiled=True)
    assert name == "forkserver" and "torch.compile" in why
    name, why = start_method("auto", lambda: 0, compiled=True)
    assert name == "fork" and "cannot be pickled" in why
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert start_method("auto", Made())[0] == "fork"  # as torch does: workers stay on the CPU
    monkeypatch.setattr(loading.sys, "platform", "darwin")
    assert start_method("auto", Made())[0] == "spawn"
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(SettingsError, match=r"data.start is fork, which this system cannot"):
        start_method("fork", Made())


def test_the_look_at_what_is_pickled_ends_early_and_leaves_tensors_out() -> None:
    class Loud(torch.Tensor):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise AssertionError("numbers were pickled")

    loud = torch.ones(1).as_subclass(Loud)
    assert start_method("auto", [loud], compiled=True)[0] == "forkserver"
    many = [b"x" * (1 << 20) + bytes([number]) for number in range(80)]
    assert start_method("auto", [*many, lambda: 0], compiled=True)[0] == "forkserver"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"batch": 30}, "22 samples make no batch of data.batch=30 over 1 ranks with"),
        ({"batch": 4, "place": Place(CPU.device, 0, 3)}, "data.batch is 4, which 3 ranks"),
    ],
)
def test_batches_that_cannot_be_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        make(drop_last=True, **given)


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"a set cannot be loaded: .*has no __len__ and __getitem__"
    ):
        make({1, 2})


def test_workers_may_be_a_number_or_a_word() -> None:
    assert load(None, ["workers=auto"], kind=DataSettings).workers == "auto"
    assert load(None, ["workers=3"], kind=DataSettings).workers == 3
    for wrong in (-1, "many", 1.5):
        with pytest.raises(SettingsError, match="workers must be a whole number or one of auto"):
            from_dict({"workers": wrong}, kind=DataSettings)


class Script:
    """A training script: an order of its own in every epoch, a random number in every sample."""

    def __init__(self, run: Path, workers: int, **given: Any) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.loader = make(workers=workers)
        self.watch = holdfast.watch(
            self.net, optimizer, run_dir=run, say=lambda line: None, **given
        )
        self.had: list[Any] = []

    def train(self, stop: int = -1) -> Script:
        watch = self.watch
        for epoch in watch.epochs(3):
            self.loader.set_epoch(epoch)
            for index, noise, _ in watch(self.loader):
                watch.backward(nn.functional.mse_loss(self.net(index / 20 + noise), noise))
                watch.step()
                self.had.append([index.flatten().tolist(), noise.flatten().tolist()])
                if len(self.had) == stop:
                    watch.save()
                    watch._checkpoints._saver.wait()
                    return self
        return self

    def end(self) -> str:
        self.watch.close()
        self.loader.close()
        return json.dumps([parameter.tolist() for parameter in self.net.parameters()])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [pytest.param(3, marks=pytest.mark.slow), 9])
def test_a_run_killed_amid_an_epoch_goes_on_with_the_next_batches(
    tmp_path: Path, workers: int, stop: int
) -> None:
    whole = Script(tmp_path / "whole", workers).train()
    cut = Script(tmp_path / "cut", workers).train(stop)
    cut.end()
    again = Script(tmp_path / "cut", workers, resume=True).train()
    run = again.watch.run
    weights = again.end()
    which = [[indices for indices, _ in script.had] for script in (whole, cut, again)]
    assert which[1] + which[2] == which[0] and len(which[2]) == 18 - stop
    expected = whole.end()
    assert run is not None
    (event,) = [e for e in LaneReader(run, run.lanes()[-1]).events() if e.kind == "resume"]
    # What lasting workers draw for their own transforms in a later epoch cannot be put back, and
    # the run says so; all else is the same to the last bit.
    lasting = workers > 0 and stop > 6
    assert event.data["exact"] is not lasting
    if not lasting:
        assert cut.had + again.had == whole.had and weights == expected

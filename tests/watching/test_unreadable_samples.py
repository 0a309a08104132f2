"""Samples that cannot be read, in loops with ``holdfast.watch`` and in the trainer."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info
from torch.utils.data.dataloader import _DatasetKind

import holdfast
from holdfast.actions import replace_sample
from holdfast.config import QuarantineSettings, Settings
from holdfast.records.crash import RaisedException
from holdfast.run import LaneReader, Run
from holdfast.training import Trainer, TrainSettings
from holdfast.training.data.loading import DataSettings

BAD = 11


class Files(Dataset[Tensor]):
    """Six numbers in each file."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"{number}.bin" for number in range(48)]
        for number, file in enumerate(self.files):
            file.write_bytes(struct.pack("6f", *[float(number)] * 6))
        self.files[BAD].write_bytes(b"cut off")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(struct.unpack("6f", self.files[index].read_bytes()))


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(replace_sample, "_PAUSES", (0.0, 0.0, 0.0))
    yield
    assert replace_sample._making is None


def reported(run_dir: Path) -> list[dict[str, Any]]:
    events = LaneReader(Run.open(run_dir), "r0").events()
    return [dict(event.data) for event in events if event.kind == "unreadable"]


def note(worker: int) -> None:
    """What a script has its workers call."""
    info = get_worker_info()
    assert info is not None and isinstance(info.dataset, Files)
    info.dataset.files = list(info.dataset.files)


def train(
    folder: Path, settings: Settings | None = None, **loading: Any
) -> tuple[holdfast.Watch, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    loader = DataLoader(Files(folder), 8, **{"shuffle": True, **loading})
    seen: list[float] = []
    own = loader.worker_init_fn
    with holdfast.watch(
        model, optimizer, run_dir=folder / "run", settings=settings, say=lambda line: None
    ) as watch:
        for _ in range(2):
            for batch in watch(loader):
                seen += batch[:, 0].tolist()
                watch.backward(model(batch).square().mean())
                watch.step()
    assert loader.worker_init_fn is own
    return watch, seen


def check(watch: holdfast.Watch, seen: list[float], folder: Path) -> None:
    assert len(seen) == 2 * 48 and BAD not in seen and set(seen) == set(range(48)) - {BAD}
    assert [(one["sample"], one["replaced"]) for one in reported(folder / "run")] == [(BAD, True)]
    (finding,) = watch.findings
    assert finding.code == "RUN003" and finding.line and "11.bin" in finding.message


@pytest.mark.parametrize("workers", [0, 2])
def test_a_watched_loop_goes_on(tmp_path: Path, workers: int) -> None:
    check(*train(tmp_path, num_workers=workers), tmp_path)


def test_a_watched_loop_trains_in_whatever_order(tmp_path: Path) -> None:
    check(*train(tmp_path, shuffle=False), tmp_path)


def test_no_trace_of_it_is_left_and_it_can_be_switched_off(tmp_path: Path) -> None:
    plain = _DatasetKind.__dict__["create_fetcher"]
    with pytest.raises(struct.error):
        train(tmp_path, Settings(quarantine=QuarantineSettings(replace=False)))
    assert _DatasetKind.__dict__["create_fetcher"] is plain
    with pytest.raises(struct.error):
        list(DataLoader(Files(tmp_path), 8, shuffle=True))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_that_are_no_forks_replace_samples_too(tmp_path: Path, start: str) -> None:
    how = {"num_workers": 2, "multiprocessing_context": start, "worker_init_fn": note}
    check(*train(tmp_path, persistent_workers=True, **how), tmp_path)


@pytest.mark.parametrize(("start", "wrapped"), [("spawn", True), ("fork", False)])
def test_what_workers_begin_with_is_wrapped_while_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, wrapped: bool
) -> None:
    seen: list[Any] = []

    def started(loader: Any) -> Iterator[Any]:
        seen.append(loader.worker_init_fn)
        return iter([])

    replace_sample.offer(None)  # as in a process where nothing has begun yet
    monkeypatch.setattr(DataLoader, "_get_iterator", started)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    how: Any = {"num_workers": 1, "multiprocessing_context": start, "worker_init_fn": note}
    loader = DataLoader(Files(tmp_path), 8, **how)
    with holdfast.watch(model, optimizer, run_dir=tmp_path / "run", say=print) as watch:
        assert list(watch(loader)) == []
    assert isinstance(seen[0], replace_sample.WorkerStart) is wrapped
    assert loader.worker_init_fn is note


def test_what_a_spawned_worker_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the process: what torch makes there replaces samples, and tells of them here."""
    dataset, called = Files(tmp_path), list[int]()
    replace_sample.offer(lambda: None)
    loader = DataLoader(
        dataset, 8, num_workers=1, multiprocessing_context="spawn", worker_init_fn=called.append
    )
    known = replace_sample.loader_begins(loader, lambda error: RaisedException(), trains=True)
    start: Any = loader.worker_init_fn
    replace_sample.loader_began()
    assert known is not None and loader.worker_init_fn == called.append
    sent = known.__getstate__()
    assert "is_of" not in sent and sent["log"] is known.log
    try:
        start(3)
        made = _DatasetKind.create_fetcher(0, dataset, True, torch.stack, False)
        assert called == [3] and replace_sample.fetcher(made).fetch([1, BAD]).shape == (2, 6)
    finally:
        replace_sample._making = None
        replace_sample.offer(None)
    assert [one.sample for one in known.fresh()] == [BAD]


@pytest.mark.parametrize(
    ("workers", "start"),
    [(0, "auto"), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)],
)
def test_the_trainer_goes_on(tmp_path: Path, workers: int, start: Any) -> None:
    def loss(net: nn.Module, batch: Tensor) -> Tensor:
        return net(batch).square().mean()

    how = DataSettings(batch=8, workers=workers or "auto", start=start)
    settings = TrainSettings(epochs=2, device="cpu", data=how)
    trainer = Trainer(
        nn.Linear(6, 1), loss, Files(tmp_path), settings=settings, run_dir=tmp_path / "run"
    )
    assert trainer.fit().step == 12
    assert [(one["sample"], one["replaced"]) for one in reported(tmp_path / "run")] == [(BAD, True)]

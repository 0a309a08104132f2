"""Units and sources of the numbers that the trainer measures of itself."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from tests.conftest import Clock
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.config import from_dict
from holdfast.run import LaneReader, Run
from holdfast.training.device import Place
from holdfast.training.loop import measures
from holdfast.training.loop.measures import Measures
from holdfast.training.loop.progress import Progress
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Trainer

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
ALLOCATED, RESERVED, PEAK = 3_000_000_000, 4_000_000_000, 3_500_000_000


def make(place: Place) -> Measures:
    watch: Any = SimpleNamespace(latest={"grad_norm": 2.5}, skipped=3)
    optimizer: Any = SimpleNamespace(param_groups=[{"lr": 0.01}])
    return Measures(place, watch, optimizer, print)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU whose allocator and driver say what they are told; the last counts the questions."""
    fake = SimpleNamespace(busy=37, asked=0, now=100.0)
    stats = {
        "allocated_bytes.all.current": ALLOCATED,
        "allocated_bytes.all.peak": PEAK,
        "reserved_bytes.all.current": RESERVED,
    }

    def utilization(device: torch.device) -> int:
        assert device == GPU
        fake.asked += 1
        return fake.busy

    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: stats)
    monkeypatch.setattr(torch.cuda, "utilization", utilization)
    monkeypatch.setattr(measures.time, "monotonic", lambda: fake.now)
    return fake


def test_paces_are_of_all_ranks_and_of_seconds_steps_and_samples() -> None:
    found = make(Place(CPU, 0, 2)).take(seconds=4.0, steps=8, samples=100)
    assert found["throughput_samples_per_sec"] == 2 * 100 / 4
    assert found["step_time"] == 4 / 8
    assert found["effective_batch_size"] == 2 * 100 / 8
    assert (found["learning_rate"], found["grad_norm"], found["skipped_steps"]) == (0.01, 2.5, 3)


def test_memory_of_a_gpu_is_in_gigabytes_and_percent_of_what_is_reserved(gpu: Any) -> None:
    found = make(Place(GPU)).take(seconds=1.0, steps=1, samples=1)
    assert found["memory_used_gb"] == 3.0  # 2.79 in GiB
    assert found["memory_utilization_percent"] == 75.0
    assert found["gpu_utilization_percent"] == 37.0
    assert measures.memory_peak(GPU) == "allocated 3.000 GB, peak 3.500 GB, reserved 4.000 GB"


def test_memory_elsewhere_is_what_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=1_500_000_000, vms=9_000_000_000)

    monkeypatch.setattr(psutil, "Process", Process)
    found = make(Place(CPU)).take(seconds=1.0, steps=1, samples=1)
    assert found["memory_used_gb"] == 1.5
    assert not [name for name in found if "utilization" in name]
    usage = SimpleNamespace(ru_maxrss=2_000_000)  # KiB
    monkeypatch.setattr(measures.resource, "getrusage", lambda who: usage)
    monkeypatch.setattr(measures.sys, "platform", "linux")
    assert measures.memory_peak(CPU) == "resident 1.500 GB, peak 2.048 GB"


def test_the_driver_is_asked_once_a_second_at_most(gpu: Any) -> None:
    made = make(Place(GPU))
    assert made.utilization() == {"gpu_utilization_percent": 37.0}
    gpu.busy, gpu.now = 80, 100.5
    assert made.utilization() == {"gpu_utilization_percent": 37.0} and gpu.asked == 1
    gpu.now = 101.0
    assert made.utilization() == {"gpu_utilization_percent": 80.0} and gpu.asked == 2


def test_tokens_per_second_are_those_of_all_batches_without_padding(
    tmp_path: Any, clock: Clock
) -> None:
    """Batches of 8 and one of 4, each with so many tokens as its rows say."""
    lengths = torch.arange(60, dtype=torch.float32).unsqueeze(1)

    def loss(net: nn.Module, batch: tuple[Tensor]) -> Any:
        clock.sleep(0.1)
        (rows,) = batch
        return net(rows / 60).square().mean(), {"tokens": rows.sum().long(), "one": 1.0}

    nested = {"device": "cpu", "data": {"batch": 8, "workers": 0}, "steps": 50, "epochs": None}
    how = from_dict(nested, kind=TrainSettings)
    data = TensorDataset(lengths)
    trainer = Trainer(
        nn.Linear(1, 1), loss, data, data, how, run_dir=tmp_path / "run", progress=Progress()
    )
    result = trainer.fit()
    events = LaneReader(Run.open(tmp_path / "run"), "r0").events()
    (found,) = [event.data for event in events if event.kind == "numbers"]
    # 6 epochs of 8 batches and 2 batches more, of 0.1 s each; a sample has 29.5 tokens on average.
    assert found["tokens_per_sample"] == pytest.approx(29.5, rel=0.1)
    assert found["throughput_tokens_per_sec"] == pytest.approx(
        found["tokens_per_sample"] * found["throughput_samples_per_sec"]
    )
    assert found["throughput_tokens_per_sec"] == pytest.approx(29.5 * (6 * 60 + 16) / 5, rel=0.1)
    assert result.rate == pytest.approx((6 * 60 + 16) / 5, rel=0.1)  # samples, not steps
    assert "tokens" not in found and "tokens" not in result.validation
    assert math.isfinite(result.validation["loss"])

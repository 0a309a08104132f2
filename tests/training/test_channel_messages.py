"""What the trainer writes on its own channels, and that a channel that is off costs nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast.config import from_dict
from holdfast.training import initial_state
from holdfast.training.loop import measures, micro_batches, profiling, reporting
from holdfast.training.loop.progress import Progress
from holdfast.training.settings import TrainSettings
from holdfast.training.trainer import Trainer

NUMBER = r"-?\d[\d.e+-]*"
WANTED = {
    "verbose": rf"batch of 8: loss {NUMBER}, two 2, tokens_per_sample 4",
    "forward": rf"8×4 float32, 8×1 float32: loss {NUMBER}",
    "memory": rf"step 1: resident {NUMBER} GB, peak {NUMBER} GB",
    "training": rf"step 1: throughput_samples_per_sec {NUMBER}, throughput_tokens_per_sec {NUMBER}",
    "init": r"Sequential: 97 parameters, 97 of them trained, 0\.0 MB; seed 0",
    "performance": rf"step 1: {NUMBER} samples/s; .*forward {NUMBER} ms",
    "profiling": rf"step 1: resident {NUMBER} GB",
}


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Any:
    x, y = batch
    return nn.functional.mse_loss(net(x), y), {"two": 2.0, "tokens": x.numel()}


def fit(path: Path, *names: str) -> list[str]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    given = {"device": "cpu", "steps": 20, "log": {"channels": list(names)}}
    settings = from_dict({**given, "data": {"batch": 8, "workers": 0}}, kind=TrainSettings)
    data, said = TensorDataset(torch.randn(160, 4), torch.randn(160, 1)), Said()
    Trainer(net, loss, data, settings=settings, run_dir=path / "run", progress=said).fit()
    return said.lines


def test_every_channel_writes_what_its_name_promises(tmp_path: Path) -> None:
    lines = fit(tmp_path, *WANTED)
    for name, pattern in WANTED.items():
        said = [line for line in lines if line.startswith(f"[{name}] ")]
        assert re.fullmatch(rf"\[{name}\] {pattern}.*", said[0]), said[0]
        assert not [line for line in said if "could not be made" in line]
    parts = [line for line in lines if line.startswith("[init] ")][1:]
    assert [line.split(":")[0] for line in parts] == ["[init] 0", "[init] 2"]
    assert re.search(r"80 parameters in 2 tensors, from -0\.\d+ to 0\.\d+, standard dev", parts[0])
    (kernels,) = [line for line in lines if line.startswith("[profiling] steps 11 to 15: ")]
    assert len(re.findall(r"\S+ [\d.]+ ms \(\d+%\)", kernels)) == 5


def test_channels_that_are_off_write_and_compute_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: Any) -> str:
        raise AssertionError("made")

    places = {
        initial_state: ("_whole", "_part"),
        measures: ("_peak_resident",),
        micro_batches: ("_forward_reported",),
        profiling: ("_kernels_reported",),
        reporting: ("memory_peak", "memory_layout", "_batch_reported", "_listed"),
    }
    for module, names in places.items():
        for name in names:
            monkeypatch.setattr(module, name, never)
    for name in ("_pace_reported", "_performance"):
        monkeypatch.setattr(reporting.StepReporter, name, never)
    assert not [line for line in fit(tmp_path / "off") if line.startswith(("[", "profile"))]
    lines = fit(tmp_path / "on", *WANTED)
    bad_values = {line.split("]")[0][1:] for line in lines if "could not be made" in line}
    assert bad_values == set(WANTED), "each of them makes its messages there"

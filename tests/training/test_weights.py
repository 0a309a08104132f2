"""From a run back to a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.errors import CheckpointError
from holdfast.training.weights import load_weights

from .test_trainer import data, fit, model, settings, weights


def test_the_best_weights_of_a_run_are_loaded_not_the_newest(tmp_path: Path) -> None:
    trained, held_out = model(), data(20, seed=1)
    # A rate that ruins everything from the second epoch on.
    ruin = settings(epochs=3, clip=None, optimizer={"name": "sgd", "lr": 1e-3})
    seen: dict[int, list[float]] = {}

    def validated(step: int, values: object) -> None:
        seen[step] = weights(trained)
        with torch.no_grad():
            if step == 8:
                for parameter in trained.parameters():
                    parameter.mul_(50)

    result = fit(tmp_path, ruin, trained, validation=held_out, validated=validated)
    assert result.best_step == 8 and result.run is not None
    loaded = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    load_weights(loaded, result.run, best=False)
    assert weights(loaded) == weights(trained) == seen[24]


def test_the_average_is_taken_where_there_is_one(tmp_path: Path) -> None:
    trained = model()
    how = settings(steps=8, average={"decay": 0.9})
    result = fit(tmp_path, how, trained, validation=data(20, seed=1))
    assert result.run is not None
    averaged, plain = model(), model()
    load_weights(averaged, result.run)
    load_weights(plain, result.run, averaged=False)
    assert weights(plain) == weights(trained) != weights(averaged)
    x, y = data(20, seed=1).tensors
    with torch.no_grad():
        error = nn.functional.mse_loss(averaged(x), y).item()
    assert error == pytest.approx(result.validation["loss"], rel=1e-5)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    result = fit(tmp_path, settings(steps=2))
    assert result.run is not None
    with pytest.raises(CheckpointError, match=r"shape: 0.weight \(16, 4\) instead of"):
        load_weights(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), result.run)
    with pytest.raises(CheckpointError, match=r"unexpected: 2\."):
        load_weights(nn.Sequential(nn.Linear(4, 16)), result.run)
    with pytest.raises(CheckpointError, match="holds no average"):
        load_weights(model(), result.run, averaged=True)
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        load_weights(model(), tmp_path)


class _Tied(nn.Module):
    """A weight in two places, a table that is not part of the state, and one that is not there."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)
        self.register_buffer("other", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.last(self.first(x)) + self.table).mean(1, keepdim=True)


def test_tied_weights_and_tables_of_the_model_itself_do_not_matter(tmp_path: Path) -> None:
    trained = _Tied()
    result = fit(tmp_path, settings(epochs=1), trained)
    assert result.run is not None
    fresh = _Tied()
    load_weights(fresh, result.run)
    x = torch.randn(5, 4)
    assert torch.equal(fresh(x), trained(x))
    assert fresh.last.weight is fresh.first.weight

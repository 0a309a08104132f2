"""Validation: every sample counts once, nothing is trained, every module is as it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.training.device import Place
from holdfast.training.loop.validation import evaluating, validate

ALONE = Place(torch.device("cpu"))


def run(batches: list[Tensor], measure: Any, limit: int | None = None) -> dict[str, float]:
    model = nn.Linear(1, 1)
    prepare = lambda batch: (batch, len(batch))  # noqa: E731
    return validate(model, measure, batches, ALONE, prepare=prepare, batches=limit)


def test_means_are_over_samples_not_over_batches() -> None:
    def measure(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor | float]:
        return {"loss": batch.mean(), "large": float((batch > 2).float().mean())}

    found = run([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0])], measure)
    assert found == {"loss": pytest.approx(4.0), "large": pytest.approx(0.5)}
    assert run([torch.ones(2), torch.zeros(2)], measure, limit=1)["loss"] == 1.0


def test_no_graph_is_built_and_the_model_is_in_evaluation_mode() -> None:
    seen: list[tuple[bool, bool]] = []

    def measure(model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        out = model(batch[:, None]).mean()
        seen.append((model.training, out.requires_grad))
        return {"loss": out}

    run([torch.ones(2)], measure)
    assert seen == [(False, False)]


def test_every_module_is_in_the_mode_it_was_in() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(), nn.Linear(2, 2))
    model[0].eval()  # frozen statistics, as in fine-tuning
    with pytest.raises(RuntimeError), evaluating(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [m.training for m in model] == [False, True, True] and model.training


def test_an_empty_set_gives_nothing() -> None:
    assert run([], lambda model, batch: {"loss": 0.0}) == {}

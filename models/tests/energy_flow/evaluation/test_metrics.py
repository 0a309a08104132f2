"""Measures in the teacher's space, against cases that can be worked out by hand."""

from __future__ import annotations

import pytest
import torch

from holdfast_models.energy_flow.evaluation import metrics
from holdfast_models.energy_flow.evaluation.metrics import quality
from holdfast_models.energy_flow.losses import LossSettings, embedding_loss, surface_loss

TARGETS = torch.nn.functional.normalize(
    torch.randn(40, 8, generator=torch.Generator().manual_seed(0)), dim=-1
)
MEAN = TARGETS.mean(0)


def test_the_targets_themselves_are_perfect() -> None:
    found = quality(TARGETS, TARGETS, MEAN)
    assert (found.cosine, found.r1, found.mrr) == pytest.approx((1.0, 1.0, 1.0))
    assert found.fvu == pytest.approx(0.0, abs=1e-12) and found.candidates == 40


def test_the_training_mean_explains_nothing() -> None:
    found = quality(MEAN.expand_as(TARGETS), TARGETS, MEAN)
    assert found.fvu == pytest.approx(1.0)
    assert found.r1 <= 1 / 40 + 1e-9


def test_equal_targets_are_one_candidate() -> None:
    twice = torch.cat((TARGETS, TARGETS))
    assert quality(twice, twice, MEAN).candidates == 40
    assert quality(twice, twice, MEAN).r1 == 1.0


def test_a_wrong_neighbour_has_the_second_rank() -> None:
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    targets = torch.stack((a, b))
    found = quality(torch.stack((b, b)), targets, targets.mean(0))
    assert (found.r1, found.mrr) == (0.5, 0.75)


def test_what_is_equally_near_to_everything_knows_nothing() -> None:
    assert quality(torch.zeros_like(TARGETS), TARGETS, MEAN).r1 == 0.0


def test_ranks_do_not_depend_on_how_many_predictions_are_compared_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    twice = torch.cat((TARGETS, TARGETS))
    guessed = twice + 0.5 * torch.randn(80, 8, generator=torch.Generator().manual_seed(1))
    whole = quality(guessed, twice, MEAN)
    monkeypatch.setattr(metrics, "_TOGETHER", 7)
    assert quality(guessed, twice, MEAN) == whole and 0.1 < whole.r1 < 1


def test_the_loss_is_zero_at_the_target_and_only_there() -> None:
    settings = LossSettings()
    assert float(embedding_loss(TARGETS, TARGETS, settings)) == pytest.approx(0.0, abs=1e-6)
    # The right direction alone is not enough.
    assert float(embedding_loss(3 * TARGETS, TARGETS, settings)) == pytest.approx(0.4, abs=1e-5)


def test_surfaces_that_shrink_are_not_rewarded() -> None:
    settings = LossSettings(spread=0.5)
    zero = torch.zeros(2, 9, requires_grad=True)
    target = torch.zeros(2, 9, requires_grad=True)
    loss = surface_loss(zero, target, settings)
    assert loss.item() == pytest.approx(0.25)
    (surface_loss(zero + torch.randn(2, 9), target, settings)).backward()
    assert target.grad is None

from __future__ import annotations

import math

import torch

from holdfast_models.xec.evaluation.worst import WorstEvents


def test_the_worst_are_kept_worst_first() -> None:
    losses = torch.rand(1000, generator=torch.Generator().manual_seed(1))
    kept = WorstEvents()
    for some in torch.arange(1000).split(37):
        kept.offer(losses[some], some, {"npho": some[:, None] * torch.ones(1, 4)})
    expected = losses.sort(descending=True)
    worst = kept.worst()
    assert [one.event for one in worst] == expected.indices[:10].tolist()
    assert [one.loss for one in worst] == expected.values[:10].tolist()
    assert all(one.arrays["npho"].tolist() == [one.event] * 4 for one in worst)


def test_equal_losses_are_no_error_and_the_first_events_stay() -> None:
    kept = WorstEvents(most=3)
    for first in (0, 4, 8):
        events = torch.arange(first, first + 4)
        kept.offer(torch.ones(4), events, {"x": torch.zeros(4, 2)})
    assert [one.event for one in kept.worst()] == [0, 1, 2]


def test_a_loss_that_is_no_number_is_the_worst() -> None:
    kept = WorstEvents(most=2)
    kept.offer(torch.tensor([1.0, math.nan, 5.0]), torch.arange(3), {})
    assert [one.event for one in kept.worst()] == [1, 2]

"""Micro-batches of one step: whatever their sizes, the gradient is the mean over all samples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.training.device import Place
from holdfast.training.loop.accumulation import AccumulationWindow

ALONE = Place(torch.device("cpu"))


def gradient_of(sizes: list[int], window: AccumulationWindow, *, last: bool = True) -> torch.Tensor:
    """What accumulates over micro-batches of a linear model whose samples are 1, 2, 3, …"""
    weight = nn.Parameter(torch.zeros(()))
    first = 1
    for size in sizes:
        samples = torch.arange(first, first + size, dtype=torch.float64)
        first += size
        ((weight * samples).mean() * window.weigh(size)).backward()
    window.settle([weight], last=last)
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize(
    ("window", "sizes"),
    [(1, [8]), (1, [3]), (4, [8, 8, 8, 8]), (4, [8, 8]), (4, [8, 8, 3]), (3, [5]), (2, [8, 1])],
)
def test_the_gradient_is_the_mean_over_all_samples(window: int, sizes: list[int]) -> None:
    usual = AccumulationWindow(window, 8, ALONE)
    count = sum(sizes)
    mean = sum(range(1, count + 1)) / count
    assert float(gradient_of(sizes, usual)) == pytest.approx(mean, rel=1e-6)
    assert (usual.passes, usual.samples) == (0, 0)


def test_a_full_window_of_one_is_left_as_it_is() -> None:
    window = AccumulationWindow(1, 8, ALONE)
    assert window.weigh(8) == window.weigh(3) == 1.0


def test_the_usual_size_is_learned_from_the_first_batch() -> None:
    assert float(gradient_of([6, 6], AccumulationWindow(2, None, ALONE))) == pytest.approx(6.5)


def test_a_window_goes_on_where_it_was_saved() -> None:
    one, other = AccumulationWindow(3, None, ALONE), AccumulationWindow(3, None, ALONE)
    one.weigh(8)
    other.load_state_dict(one.state_dict())
    assert (other.passes, other.samples, other.full) == (1, 8, False)
    assert other.weigh(4) == one.weigh(4) == pytest.approx(4 / 24)

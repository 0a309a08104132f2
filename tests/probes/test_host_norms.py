"""Norms of gradients on the host: many small tensors are measured together."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from holdfast.probes.host_norms import HostNorms, read_on_host


def gradients(count: int = 60) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3,), (4, 5), (1,), (2, 3, 4)]
    return [torch.randn(shapes[i % 4], generator=generator) for i in range(count)]


def learnt(grads: list[Tensor]) -> HostNorms:
    norms = HostNorms()
    norms.learn(grads)
    return norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_each_tensor(dtype: torch.dtype) -> None:
    grads = [g.to(dtype) for g in gradients()]
    grads[1] = grads[1].t()  # of another layout in memory
    norms = learnt(grads)
    assert norms._starts is not None
    found, each = norms.read(grads, True), read_on_host(grads)
    assert found.norms == pytest.approx(each.norms) and not found.bad


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_named(value: float) -> None:
    grads = gradients()
    norms = learnt(grads)
    grads[17].view(-1)[0] = grads[5].view(-1)[0] = value
    found, each = norms.read(grads, True), read_on_host(grads)
    assert found.bad == each.bad == [5, 17]
    assert str(found.largest) == str(each.largest)


def test_squares_that_overflow_are_finite() -> None:
    grads = gradients()
    norms = learnt(grads)
    grads[3].fill_(1e30)
    found = norms.read(grads, True)
    assert not found.bad and found.norms[3] == pytest.approx(1e30 * math.sqrt(24))  # type: ignore[index]


def test_few_and_large_and_empty_ones_are_measured_one_by_one() -> None:
    assert learnt(gradients(8))._starts is None
    assert learnt([torch.randn(4096) for _ in range(40)])._starts is None
    assert learnt([*gradients(), torch.randn(0)])._starts is None


def test_tensors_of_another_size_are_noticed() -> None:
    grads = gradients()
    norms = learnt(grads)
    grads[0] = torch.randn(9)
    assert norms.read(grads, True).norms == pytest.approx(read_on_host(grads).norms)

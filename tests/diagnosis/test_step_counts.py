"""What is counted of a step: hooks, graph nodes, and what a device says."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from holdfast.diagnosis.throughput import step_counts
from holdfast.diagnosis.throughput.step_counts import (
    graph_nodes,
    registered_on,
    retries,
)


def test_modules_and_hooks_are_counted() -> None:
    net = nn.Linear(3, 3)
    counts = [registered_on([net])]
    for _ in range(2):
        parametrize.register_parametrization(net, "weight", nn.Identity())
        counts.append(registered_on([net]))
    net.register_forward_hook(lambda *_: None)
    counts.append(registered_on([net]))
    for _ in range(2):
        next(net.parameters()).register_hook(lambda grad: grad)
        counts.append(registered_on([net]))
    assert counts == sorted(set(counts))


def test_the_nodes_of_a_graph_are_counted() -> None:
    weight = torch.ones(2, requires_grad=True)
    short, long = (weight * 2).sum(), (weight * 2 * 3 * 4).sum()
    assert 0 < graph_nodes(short) < graph_nodes(long)
    assert graph_nodes(torch.ones(2)) == graph_nodes(None) == 0


@pytest.mark.parametrize("there", [True, False])
def test_retries_are_those_of_a_device(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: there)
    monkeypatch.setattr(step_counts, "counters", lambda: {"num_alloc_retries": 3})
    assert retries() == 3 * there

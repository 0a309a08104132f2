"""What is counted of a step: hooks and allocator retries."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from holdfast.diagnosis.throughput import step_counts
from holdfast.diagnosis.throughput.step_counts import (
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


@pytest.mark.parametrize("there", [True, False])
def test_retries_are_those_of_a_device(monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: there)
    monkeypatch.setattr(step_counts, "counters", lambda: {"num_alloc_retries": 3})
    assert retries() == 3 * there

"""When the watchers watch and when they rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.config import Settings
from tests.guard.conftest import MakeEngine

# What the guard costs is a matter of time.
pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def trained(make_engine: MakeEngine):
    def train(steps: int, budget: float):
        engine = make_engine(Settings(), budget=budget)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        watched = []
        for _ in range(steps):
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            watched.append(engine.state.watchers.on)
        engine.close()
        assert "watchers" not in engine.off
        return watched

    return train


def test_they_rest_where_the_guard_is_above_its_allowance(trained):
    watched = trained(1500, budget=0.0)
    assert all(watched[:256])
    rests = watched.index(False)
    assert 256 <= rests < 400, "an exam may hold it up"
    # They come back, and rest again.
    again = watched.index(True, rests)
    assert 800 < again - rests < 1000
    assert sum(watched) < 0.5 * len(watched)


@pytest.mark.slow
def test_they_watch_where_it_is_not(trained):
    assert all(trained(400, budget=1.0))

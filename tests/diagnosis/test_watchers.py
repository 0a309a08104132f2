"""When the watchers watch and when they rest."""

from __future__ import annotations

import sys

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
    assert 256 <= rests < 400, "a profile may hold it up"
    # They come back, and rest again.
    again = watched.index(True, rests)
    assert 800 < again - rests < 1000
    assert sum(watched) < 0.5 * len(watched)


@pytest.mark.slow
def test_they_watch_where_it_is_not(trained):
    assert all(trained(400, budget=1.0))


def test_a_part_that_eval_freezes_is_trained_while_they_rest(make_engine: MakeEngine):
    engine = make_engine(Settings(), budget=0.0)
    frozen, head = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)
    model = nn.Sequential(frozen, nn.Tanh(), head, nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    reported: list[str] = []
    memory = engine.state.watchers.memory
    assert memory is not None
    memory.evaluation._record = lambda found: reported.append(found.kind)
    for step in range(700):
        if step % 5 == 0:
            engine.trains()
            engine.evaluates(sys._getframe())
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    rested = not engine.state.watchers.on
    engine.close()
    assert rested and "watchers" not in engine.off
    assert reported == []

"""Update sizes: each layer gets its turn, and the ratio is the one a person would compute."""

from __future__ import annotations

import torch

from holdfast.probes import updates
from holdfast.probes.updates import UpdateSizes


def test_the_ratio_of_change_to_size() -> None:
    weight = torch.full((10,), 2.0)
    before = UpdateSizes().before([weight])
    assert before is not None
    weight += 0.5
    assert before.positions == [0]
    assert torch.allclose(before.ratios(), torch.tensor([0.25], dtype=torch.float64))


def test_a_weight_of_zeros_has_no_ratio() -> None:
    weight = torch.zeros(3)
    before = UpdateSizes().before([weight])
    assert before is not None
    weight += 1
    assert before.ratios().isnan().all()


def test_every_layer_gets_its_turn(monkeypatch) -> None:
    monkeypatch.setattr(updates, "_HOST_BYTES", 100)
    layers = [torch.ones(n) for n in (10, 20, 5, 25, 1)]
    probe = UpdateSizes()
    turns = [probe.before(layers).positions for _ in range(4)]  # type: ignore[union-attr]
    assert turns == [[0], [1, 2], [3], [4]]


def test_the_beginning_of_a_large_one_stands_for_it(monkeypatch) -> None:
    monkeypatch.setattr(updates, "_HOST_BYTES", 100)
    probe = UpdateSizes()
    layers = [torch.ones(1000), torch.ones(5)]
    before = probe.before(layers)
    assert before is not None
    assert (before.positions, before.live[0].numel()) == ([0], 25)
    layers[0] += 0.5
    assert before.ratios().tolist() == [0.5]
    assert probe.before(layers).positions == [1]  # type: ignore[union-attr]

"""Fields: the physics they follow, parts that are disjoint, settings that fit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast import HoldfastError
from holdfast.training import Place, resolve
from holdfast_models.energy_flow.data.fields import answered, make_fields, side_of, transported
from holdfast_models.energy_flow.data.pairs import DataSettings, load_pairs
from holdfast_models.energy_flow.model.mappers import InputMapper, OutputMapper
from holdfast_models.energy_flow.model.settings import LatticeSettings, MapperSettings
from holdfast_models.energy_flow.recipe import RECIPE, build
from holdfast_models.energy_flow.run_settings import EnergyFlowSettings


def fields(**values: Any) -> DataSettings:
    given = {"source": "fields", "task": "transport", "split": "pair", "count": 60, "width": 36}
    return DataSettings(**given | values)


def block(first: int, last: int, height: float) -> torch.Tensor:
    row = torch.zeros(1, 1, 60, dtype=torch.float64)
    row[..., first:last] = height
    return row


@pytest.mark.parametrize("height", [1.0, 0.5, -1.0])
def test_a_shock_travels_with_half_the_speed_behind_it(height: float) -> None:
    way = 16.0
    after = transported(block(20, 40, height), way)[0, 0] / height
    # From behind to before the front, where the front's place is what has passed.
    passed = after[40:].sum() if height > 0 else after[:20].sum()
    assert passed.item() == pytest.approx(abs(height) * way / 2, rel=0.01)


def test_what_stays_off_the_walls_is_kept_and_never_grows() -> None:
    field = torch.rand(3, 4, 60, dtype=torch.float64) * 2 - 1
    field[..., :20] = field[..., 40:] = 0
    after = transported(field, 12.0)
    torch.testing.assert_close(after.sum(-1), field.sum(-1))
    assert (after.amax(-1) <= field.amax(-1)).all() and (after.amin(-1) >= field.amin(-1)).all()


def test_a_slope_becomes_flatter_where_it_rises_and_rows_do_not_meet() -> None:
    place = torch.arange(60, dtype=torch.float64) - 30
    field = torch.stack((place / 60, torch.zeros_like(place)))[None]
    after = transported(field, 30.0)
    # The exact solution of a slope s is s / (1 + s t); off the walls, and off the middle, where
    # the scheme has a small step.
    assert after[0, 0, 35:45].diff().tolist() == pytest.approx([1 / 60 / 1.5] * 9, rel=0.02)
    assert not after[0, 1].any()


def test_a_cell_answers_with_a_sine_and_gives_a_tenth_to_each_neighbour() -> None:
    field = torch.zeros(1, 4, 4, dtype=torch.float64)
    field[0, 0, 1] = 0.25
    answer = math.sin(math.pi / 4)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    expected[0, 1] = 0.6 * answer
    expected[0, 0] = expected[0, 2] = expected[1, 1] = 0.1 * answer  # the fourth is outside
    torch.testing.assert_close(answered(field)[0], expected)


def test_after_three_rounds_a_cell_is_felt_three_cells_away_and_no_further() -> None:
    x_NE, y_NE = make_fields(1, 0, "rounds", 8)
    after = x_NE.view(1, 8, 8) * 8
    for _ in range(3):
        after = answered(after, 3.0, 0.8)
    torch.testing.assert_close(y_NE.view(1, 8, 8) * 8, after)
    moved = (x_NE.view(1, 8, 8) * 8).clone()
    moved[0, 0, 0] += 0.3
    for _ in range(3):
        moved = answered(moved, 3.0, 0.8)
    felt = (moved - after)[0].abs() > 1e-6
    reach = torch.arange(8)[:, None] + torch.arange(8)
    assert torch.equal(felt, reach <= 3)


@pytest.mark.parametrize("task", ["transport", "maps", "rounds"])
def test_a_seed_always_makes_the_same_fields_however_many(task: Any) -> None:
    many, few = make_fields(40, 3, task, 6), make_fields(7, 3, task, 6)
    for ours, theirs in zip(many, few, strict=True):
        torch.testing.assert_close(ours[:7], theirs)
        assert ours.shape == (40, 36) and ours.dtype == torch.float32
    assert not torch.allclose(few.x_NE, make_fields(7, 4, task, 6).x_NE)
    assert not torch.allclose(few.x_NE, few.y_NE, atol=0.02)


@pytest.mark.parametrize("task", ["transport", "maps", "rounds"])
def test_the_parts_share_no_field_and_come_without_texts(task: str) -> None:
    sets = load_pairs(fields(task=task))
    rows = [row for part in sets[:3] for row in part.tensors()[0]]
    assert len(rows) == len(torch.unique(torch.stack(rows), dim=0)) == 60
    assert min(map(len, sets[:3])) > 0 and not sets.train.has_texts and sets.teacher is None


def test_a_field_that_is_held_out_stays_so_when_more_are_made() -> None:
    held = load_pairs(fields()).test.tensors()[0]
    more = load_pairs(fields(count=90))
    torch.testing.assert_close(more.test.tensors()[0][: len(held)], held)


def test_only_squares_are_fields() -> None:
    assert [side_of(width) for width in (16, 144, 9, 143, 145)] == [4, 12, None, None, None]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"task": "rewrite"}, "set task to transport, maps or rounds"),
        ({"split": "hard"}, "set split to pair"),
        ({"width": 384}, "width is 384; fields are squares"),
        ({"source": "grammar", "split": "hard"}, "task transport is one of fields"),
    ],
)
def test_settings_that_do_not_fit_fields_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises((HoldfastError, ValueError), match=said):
        fields(**values)


def test_a_text_bridge_needs_texts() -> None:
    with pytest.raises(
        (HoldfastError, ValueError), match=r"has no texts for the bridge; set bridge.on=false"
    ):
        resolve(RECIPE, preset="fields", overrides=["bridge.on=true"], platform="none")
    settings: EnergyFlowSettings = resolve(RECIPE, preset="fields", platform="none")
    assert settings.data.source == "fields" and not settings.bridge.on


def test_fields_are_trained_on_as_they_are() -> None:
    small = ["data.count=60", "data.width=16", "model.width=16", "model.carrier.hidden=8"]
    sides = ["model.lattice.width=4", "model.lattice.height=4"]
    settings = resolve(RECIPE, preset="fields", overrides=[*small, *sides], platform="none")
    task = build(settings, Place(torch.device("cpu")))
    batch = load_pairs(settings.data).train.__getitems__(range(8)).batch
    task.model.eval()  # no noise
    y_hat_BE = task.model(batch[0]).y_BE
    # At first the core hands everything on: what comes out is the field that went in, but for tanh.
    x_BE, y_BE = batch[:2]
    copied = torch.cosine_similarity(x_BE, y_BE).mean().item()
    found = torch.cosine_similarity(y_hat_BE, y_BE).mean().item()
    assert found == pytest.approx(copied, abs=0.05)
    y_hat_BE.square().sum().backward()
    moves = dict(task.model.named_parameters())["core.carrier.move_end.weight"]
    assert moves.grad is not None and moves.grad.any()


@pytest.mark.parametrize("form", ["linear", "skip"])
def test_a_mapper_that_starts_linear_puts_each_number_into_its_cell_and_back(form: Any) -> None:
    lattice, settings = LatticeSettings(width=4, height=4), MapperSettings(form=form)
    spread, gather = InputMapper(16, lattice, settings), OutputMapper(16, lattice, settings)
    with torch.no_grad():
        spread.place_HW.zero_()
    x_BE = torch.randn(3, 16) / 4
    surface_BHW = spread(x_BE)
    torch.testing.assert_close(surface_BHW, torch.tanh(4 * x_BE).view(3, 4, 4))
    y_BE = gather(surface_BHW.flatten(1))
    torch.testing.assert_close(y_BE, surface_BHW.flatten(1) / 4)
    y_BE.square().sum().backward()
    # The end of the hidden layers is all zeros, and still what learns first.
    ends = [w for w in gather.parameters() if w.dim() == 2 and not w.any()]
    assert len(ends) == (form == "skip")
    assert all(end.grad is not None and end.grad.any() for end in ends)

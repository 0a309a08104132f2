"""Which settings may differ from those of a run, and how loudly that is said."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import HoldfastError
from holdfast.training import resolve
from holdfast_models.energy_flow.evaluation.compatibility import check, differences
from holdfast_models.energy_flow.recipe import RECIPE


def settings(*overrides: str) -> Any:
    return resolve(RECIPE, overrides=overrides, platform="none")


def reported(*overrides: str) -> list[tuple[str, str]]:
    return [(one.level, one.key) for one in differences(settings(), settings(*overrides))]


def test_equal_settings_are_silent() -> None:
    assert reported() == []
    assert check(settings(), settings(), "run") == []


@pytest.mark.parametrize(
    "override",
    [
        "model.lattice.width=21",
        "model.lattice.height=21",
        "model.carrier.hidden=128",
        "model.carrier.layers=3",
        "model.carrier.neuron_hidden=16",
        "model.carrier.neuron_output=32",
        "model.flows.coupling=true",
        "model.mapper.rank=64",
        "core=false",
        "bridge.width=256",
        "bridge.memories=4",
    ],
)
def test_another_size_is_an_error(override: str) -> None:
    assert reported(override) == [("error", override.partition("=")[0])]


def test_an_error_is_one_line_with_both_values_of_every_size() -> None:
    other = settings("model.lattice.depth=12", "model.width=32", "data.width=32")
    with pytest.raises(HoldfastError) as caught:
        check(settings(), other, "runs/first")
    line = str(caught.value)
    assert line.startswith("runs/first: ") and "\n" not in line
    assert "model.lattice.depth is 6 there and 12 here" in line
    assert "model.width is 384 there and 32 here" in line


@pytest.mark.parametrize(
    "override",
    [
        "bridge.on=false",
        "model.flows.reflect=false",
        "model.flows.spawn_most=1",
        "model.flows.filter_below=0.1",
        "model.flows.splat=nearest",
        "model.flows.steps=7",
        "model.carrier.z_drift=0.07",
        "model.convergence.on=false",
        "model.convergence.patience=9",
        "data.teacher=minilm",
    ],
)
def test_another_behaviour_is_a_warning(override: str) -> None:
    assert reported(override) == [("warning", override.partition("=")[0])]


def test_a_run_goes_on_with_the_bridge_it_has_and_a_loaded_one_need_not() -> None:
    assert RECIPE.compare is not None
    found = RECIPE.compare(settings(), settings("bridge.on=false", "model.flows.reflect=false"))
    assert [(one.level, one.key) for one in found] == [
        ("error", "bridge.on"),
        ("warning", "model.flows.reflect"),
    ]


def test_a_value_that_null_stands_for_is_no_difference() -> None:
    drift = settings().model.z_drift
    assert reported("model.flows.steps=3", f"model.carrier.z_drift={drift}") == []
    wide = ["model.lattice.width=40", "model.lattice.height=40"]
    assert differences(settings(*wide), settings(*wide, "model.mapper.rank=1024")) == []


def test_sizes_of_a_bridge_that_is_off_do_not_count() -> None:
    assert reported("bridge.on=false", "bridge.width=128") == [("warning", "bridge.on")]


@pytest.mark.parametrize(
    ("override", "noted"),
    [
        ("train.optimizer.lr=0.5", True),
        ("train.data.batch=31", True),
        ("model.flows.capacity=99999", True),
        ("bridge.weight=0.119", False),
        ("bridge.weight=0.121", True),
        ("model.flows.noise_cells=0.109", False),
        ("model.flows.noise_cells=0.089", True),
    ],
)
def test_training_that_differs_enough_is_a_note(override: str, noted: bool) -> None:
    key = override.partition("=")[0]
    assert reported(override) == ([("note", key)] if noted else [])


def test_noise_where_there_was_none_is_a_note() -> None:
    (found,) = differences(settings("model.flows.noise_cells=0"), settings())
    assert found.line == "note: model.flows.noise_cells was 0, is 0.1"


def test_what_is_not_refused_is_returned_errors_aside_in_order() -> None:
    found = check(settings(), settings("train.data.batch=8", "model.flows.reflect=false"), "run")
    assert [one.line for one in found] == [
        "warning: model.flows.reflect was true, is false",
        "note: train.data.batch was 32, is 8",
    ]

from __future__ import annotations

import pytest

from holdfast import HoldfastError
from holdfast_models.energy_flow.model.settings import (
    PRESETS,
    CarrierSettings,
    ConvergenceSettings,
    FlowSettings,
    LatticeSettings,
    MapperSettings,
    ModelSettings,
)


def small(**flows) -> ModelSettings:
    lattice = LatticeSettings(width=4, height=3, depth=6)
    return ModelSettings(lattice=lattice, flows=FlowSettings(**flows))


def test_steps_and_drift_follow_the_depth_unless_they_are_set():
    free = small()
    assert (free.lattice.cells, free.steps, free.z_drift) == (12, 3, 2 / 3)
    given = small(steps=8)
    assert (given.steps, given.z_drift) == (8, 0.25)
    still = ModelSettings(carrier=CarrierSettings(z_drift=0.0))
    assert still.z_drift == 0.0


@pytest.mark.parametrize("side", ["width", "height", "depth"])
def test_a_side_below_two_is_refused(side):
    with pytest.raises(HoldfastError, match=rf"{side} must be a whole number of at least 2, not 1"):
        LatticeSettings(**{side: 1})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (CarrierSettings, "hidden", 0),
        (CarrierSettings, "layers", 0),
        (CarrierSettings, "energy", "linear"),
        (CarrierSettings, "scale_decay", 1.5),
        (CarrierSettings, "input_clip", 0.0),
        (FlowSettings, "capacity", 0),
        (FlowSettings, "spawn_threshold", 0.0),
        (FlowSettings, "noise_cells", -0.1),
        (FlowSettings, "noise_anneal", 0),
        (FlowSettings, "steps", 0),
        (FlowSettings, "mode", "sparse"),
        (ConvergenceSettings, "threshold", 1.2),
        (ConvergenceSettings, "patience", 0),
        (MapperSettings, "rank", 0),
        (MapperSettings, "dropout1", -0.1),
    ],
)
def test_a_value_outside_its_interval_is_refused_by_name(kind, name, value):
    with pytest.raises(HoldfastError, match=name):
        kind(**{name: value})


def test_a_least_scale_above_the_scale_is_refused():
    with pytest.raises(ValueError, match=r"scale_min is 2\.0, above scale 1\.5"):
        CarrierSettings(scale=1.5, scale_min=2.0)


def test_a_capacity_below_one_sample_is_refused_where_overflow_is_an_error():
    with pytest.raises(ValueError, match="capacity is 11, but 1 x 12 cells need 12"):
        small(capacity=11, overflow="error")
    assert small(capacity=11, overflow="topk").flows.capacity == 11


def test_a_capacity_below_what_the_batch_needs_is_refused_where_overflow_is_an_error():
    settings = small(capacity=24, overflow="error")
    settings.check_batch(2)
    with pytest.raises(ValueError, match="3 x 12 cells need 36"):
        settings.check_batch(3)


def test_a_capacity_without_one_flow_for_each_sample_is_refused():
    settings = small(capacity=2)
    settings.check_batch(2)
    with pytest.raises(ValueError, match="less than one flow for each of 3 samples"):
        settings.check_batch(3)


def test_mappers_are_of_low_rank_above_1024_cells_or_where_a_rank_is_set():
    assert MapperSettings().rank_for(1024) is None
    assert MapperSettings().rank_for(1025) == 1024
    assert MapperSettings(rank=7).rank_for(10) == MapperSettings(rank=7).rank_for(5000) == 7


def test_presets_are_those_of_the_specification():
    shown = {}
    for name, data in PRESETS.items():
        one = ModelSettings(**data)
        shown[name] = (
            (one.lattice.width, one.lattice.height, one.lattice.depth),
            (one.carrier.hidden, one.carrier.layers),
            (one.flows.capacity, one.flows.spawn_most, one.flows.spawn_threshold),
            (one.convergence.patience, one.convergence.threshold, one.convergence.least_steps),
        )
    assert shown == {
        "debug": ((20, 20, 10), (256, 2), (50_000, 0, 0.15), (5, 0.8, 3)),
        "experiment": ((28, 28, 40), (512, 3), (200_000, 0, 0.5), (8, 0.95, 5)),
        "optimized": ((100, 100, 50), (1024, 3), (200_000, 0, 0.1), (12, 0.95, 5)),
        "exp50": ((50, 50, 20), (512, 2), (40_000, 0, 0.5), (3, 0.95, 5)),
        "max80": ((80, 80, 60), (1024, 3), (20_000, 0, 0.5), (3, 0.95, 5)),
    }


def test_exp50_has_a_flow_for_each_cell_of_its_batch_of_16():
    one = ModelSettings(**PRESETS["exp50"])
    assert one.flows.capacity >= 16 * one.lattice.cells

from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.energy_flow.model.coordinates import denormalise
from holdfast_models.energy_flow.model.flows import (
    Flows,
    blank,
    has_spawn,
    join,
    launch,
    pick_cells,
    slots_for_children,
    take,
)
from holdfast_models.energy_flow.model.settings import ModelSettings


def surface(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 5, 6, generator=torch.Generator().manual_seed(0))


def launched(settings: ModelSettings, batch: int = 3) -> Flows:
    return launch(surface(batch), settings.lattice, settings)


def test_each_cell_launches_a_flow_from_the_middle_plane(small_settings):
    settings = small_settings()
    given_BHW = surface()
    flows = launch(given_BHW, settings.lattice, settings)
    place_N3 = denormalise(flows.p_N3, settings.lattice).round().long()
    for n in range(3 * 30):
        b, y, x = n // 30, n % 30 // 6, n % 6
        assert place_N3[n].tolist() == [x, y, 8]
        assert flows.e_N1[n, 0] == given_BHW[b, y, x]
        assert flows.sample_N[n] == b
    assert flows.index_N.tolist() == list(range(90))
    assert flows.h_LNC.shape == (2, 90, 12) and not flows.h_LNC.any()
    assert flows.alive_N.all() and not flows.k_N.any() and not flows.exit_N.any()


def test_energies_carry_the_gradient_to_the_surface(small_settings):
    settings = small_settings()
    given_BHW = surface().requires_grad_()
    launch(given_BHW, settings.lattice, settings).e_N1.sum().backward()
    assert given_BHW.grad is not None and (given_BHW.grad == 1).all()


def test_overflow_keeps_the_strongest_cells_equally_many_of_each_sample(small_settings):
    settings = small_settings(flows={"capacity": 32})
    given_BHW = surface()
    cells_BK = pick_cells(given_BHW, settings)
    assert cells_BK is not None
    flows = launch(given_BHW, settings.lattice, settings, cells_BK=cells_BK)
    assert flows.sample_N.bincount().tolist() == [10, 10, 10]
    for b in range(3):
        energy_S = given_BHW[b].flatten()
        strongest = set(energy_S.abs().argsort(descending=True)[:10].tolist())
        assert set(cells_BK[b].tolist()) == strongest
        assert flows.e_N1[10 * b : 10 * b + 10, 0].tolist() == energy_S[sorted(strongest)].tolist()
    place_N3 = denormalise(flows.p_N3, settings.lattice).round().long()
    assert (place_N3[:, 1] * 6 + place_N3[:, 0]).tolist() == cells_BK.flatten().tolist()


def test_overflow_is_an_error_where_it_is_set_so(small_settings):
    settings = small_settings(flows={"capacity": 89, "overflow": "error"})
    with pytest.raises(HoldfastError, match="capacity is 89, but 3 x 30 cells need 90"):
        pick_cells(surface(), settings)


def test_nothing_is_picked_where_there_is_room_for_all(small_settings):
    assert pick_cells(surface(), small_settings(flows={"capacity": 90})) is None


def test_a_part_of_a_batch_has_the_numbers_of_the_whole(small_settings):
    settings = small_settings()
    whole = launched(settings)
    part = launch(surface()[1:], settings.lattice, settings, first=1)
    assert torch.equal(part.index_N, whole.index_N[30:])
    assert part.sample_N.tolist() == [0] * 30 + [1] * 30
    assert torch.equal(part.e_N1, whole.e_N1[30:])


def test_spawning_is_ruled_out_where_no_step_can_be_long_enough(small_settings):
    still = {"z_drift": 0.0}
    # Half a box on each axis is 0.87 long: enough for a child at 0.43, not at 0.44.
    for threshold, possible in ((0.43, True), (0.44, False)):
        flows = {"spawn_most": 1, "spawn_threshold": threshold, "noise_cells": 0.0}
        assert has_spawn(small_settings(flows=flows, carrier=still)) is possible
    assert has_spawn(
        small_settings(
            flows={"spawn_most": 1, "spawn_threshold": 0.44, "noise_cells": 0.0},
            carrier={"z_drift": 0.1},
        )
    )
    assert not has_spawn(small_settings(flows={"spawn_most": 0, "spawn_threshold": 0.01}))


def test_slots_are_what_can_be_born_or_what_the_capacity_leaves(small_settings):
    flows = {"spawn_most": 2, "spawn_threshold": 0.1}
    # 30 flows, each with two children in each step: 30 * 3 ** 2 in all after two.
    assert slots_for_children(2, 30, 2, small_settings(flows=flows)) == 30 * 9 - 30
    tight = small_settings(flows=flows | {"capacity": 101})
    assert slots_for_children(2, 30, 2, tight) == 20


def test_rows_are_taken_joined_and_blank(small_settings):
    flows = launched(small_settings(), batch=1)
    taken = take(flows, torch.tensor([4, 2, 2]))
    assert taken.index_N.tolist() == [4, 2, 2] and taken.h_LNC.shape == (2, 3, 12)
    more = join([taken, blank(taken, torch.tensor([7]))])
    assert more.index_N.tolist() == [4, 2, 2, 7] and more.h_LNC.shape == (2, 4, 12)
    assert more.alive_N.tolist() == [True, True, True, False] and more.born_N[3] == -1


def test_states_are_kept_in_the_type_of_autocast(small_settings):
    settings = small_settings()
    with torch.autocast("cpu", torch.bfloat16):
        flows = launched(settings)
    assert flows.h_LNC.dtype == torch.bfloat16
    assert flows.p_N3.dtype == flows.e_N1.dtype == torch.float32

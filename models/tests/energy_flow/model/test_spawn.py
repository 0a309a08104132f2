"""Children: how many, whose come first, and where they are put."""

from __future__ import annotations

import pytest
import torch

from holdfast_models.energy_flow.model.spawn import children, place_children


def alive(number: int) -> torch.Tensor:
    return torch.ones(number, dtype=torch.bool)


def zeros(number: int) -> torch.Tensor:
    return torch.zeros(number, dtype=torch.long)


def born_of(placed, slots: int) -> list[list[int | None]]:
    """The parent in each slot, sample by sample."""
    flat = [None if parent < 0 else parent for parent in placed.parent_R.tolist()]
    assert [parent is not None for parent in flat] == placed.born_R.tolist()
    return [flat[at : at + slots] for at in range(0, len(flat), slots)]


def test_the_number_of_children_follows_the_formula():
    distance_N = torch.tensor([0.0, 0.1, 0.19, 0.21, 0.35, 0.45, 0.87, torch.inf, torch.nan])
    assert children(distance_N, alive(9), 0.1, 3).tolist() == [0, 0, 0, 1, 2, 3, 3, 3, 0]
    assert children(distance_N, alive(9), 0.1, 1).tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 0]
    assert children(distance_N, ~alive(9), 0.1, 3).tolist() == [0] * 9
    assert children(distance_N, alive(9), 0.1, 0).tolist() == [0] * 9


def test_a_threshold_of_one_half_makes_no_children():
    # The largest displacement, 0.5 on each axis: a way of 0.87.
    assert children(torch.tensor([0.75**0.5]), alive(1), 0.5, 3).tolist() == [0]


def test_the_farthest_flow_comes_first_and_the_rest_is_not_born():
    distance_N = torch.tensor([0.3, 0.9, 0.0, 0.5])
    count_N = torch.tensor([2, 2, 0, 2])
    placed = place_children(distance_N, count_N, zeros(4), zeros(1), slots=5, most=2)
    assert born_of(placed, 5) == [[1, 1, 3, 3, 0]]
    assert placed.used_B.tolist() == [5]


def test_equal_distances_keep_the_order_of_the_flows():
    placed = place_children(
        torch.full((4,), 0.5), torch.ones(4).long(), zeros(4), zeros(1), slots=3, most=1
    )
    assert born_of(placed, 3) == [[0, 1, 2]]


def test_slots_fill_up_over_the_steps_and_are_never_given_twice():
    distance_N, count_N = torch.tensor([0.4, 0.6]), torch.tensor([1, 1])
    used_B, seen = zeros(1), []
    for _ in range(3):
        placed = place_children(distance_N, count_N, zeros(2), used_B, slots=5, most=3)
        seen.append(born_of(placed, 5)[0])
        used_B = placed.used_B
    none = None
    assert seen == [
        [1, 0, none, none, none],
        [none, none, 1, 0, none],
        [none, none, none, none, 1],
    ]
    assert used_B.tolist() == [5]


def test_no_sample_takes_the_room_of_another():
    distance_N = torch.tensor([0.9, 0.2, 0.8, 0.3])
    sample_N = torch.tensor([0, 1, 0, 1])
    placed = place_children(
        distance_N, torch.tensor([3, 1, 3, 2]), sample_N, zeros(3), slots=4, most=3
    )
    assert born_of(placed, 4) == [[0, 0, 0, 2], [3, 3, 1, None], [None] * 4]
    assert placed.used_B.tolist() == [4, 3, 0]


def test_a_batch_decides_as_its_samples_do_alone():
    draw = torch.Generator().manual_seed(2)
    distance_N = torch.rand(60, generator=draw)
    sample_N = torch.randint(3, (60,), generator=draw)
    count_N = children(distance_N, torch.rand(60, generator=draw) < 0.7, 0.1, 3)
    used_B = torch.tensor([0, 5, 19])
    placed = place_children(distance_N, count_N, sample_N, used_B, slots=20, most=3)
    whole = born_of(placed, 20)
    for sample in range(3):
        row_N = (sample_N == sample).nonzero().squeeze(1)
        one = place_children(
            distance_N[row_N],
            count_N[row_N],
            zeros(len(row_N)),
            used_B[sample : sample + 1],
            slots=20,
            most=3,
        )
        (alone,) = born_of(one, 20)
        assert whole[sample] == [None if at is None else int(row_N[at]) for at in alone]
        # Counted by a loop: the formula for each living flow, and no more than the free slots.
        wanted = sum(count_N[row_N].tolist())
        assert placed.used_B[sample] == min(20, used_B[sample].item() + wanted)
        born = placed.born_R[sample * 20 : (sample + 1) * 20].sum()
        assert born == placed.used_B[sample] - used_B[sample]


@pytest.mark.parametrize(("slots", "most"), [(0, 3), (4, 0)])
def test_without_slots_or_children_nothing_is_born(slots, most):
    count_N = torch.full((5,), most)
    placed = place_children(torch.rand(5), count_N, zeros(5), zeros(2), slots=slots, most=most)
    assert placed.born_R.tolist() == [False] * (2 * slots)
    assert placed.used_B.tolist() == [0, 0]

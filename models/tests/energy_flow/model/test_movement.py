"""Exits, walls and the gradient of a step, on hand-made displacements."""

from __future__ import annotations

import pytest
import torch

from holdfast_models.energy_flow.model.movement import INSIDE, Z0, ZD, move

# name: position, displacement, expected position, expected exit
STEPS = {
    "in the open": ((0.0, 0.0, 0.0), (0.1, -0.2, 0.3), (0.1, -0.2, 0.3), INSIDE),
    "out at z0": ((0.5, 0.5, -0.9), (0.0, 0.0, -0.3), (0.5, 0.5, -1.0), Z0),
    "out at zD": ((0.5, 0.5, 0.9), (0.0, 0.0, 0.3), (0.5, 0.5, 1.0), ZD),
    "just onto z0": ((0.0, 0.0, -0.75), (0.0, 0.0, -0.25), (0.0, 0.0, -1.0), Z0),
    "just onto zD": ((0.0, 0.0, 0.75), (0.0, 0.0, 0.25), (0.0, 0.0, 1.0), ZD),
    "right wall": ((0.9, 0.0, 0.0), (0.3, 0.0, 0.0), (0.8, 0.0, 0.0), INSIDE),
    "left wall": ((-0.9, 0.0, 0.0), (-0.5, 0.0, 0.0), (-0.6, 0.0, 0.0), INSIDE),
    "lower corner": ((-0.9, -1.0, 0.0), (-0.2, -0.5, 0.0), (-0.9, -0.5, 0.0), INSIDE),
    "onto the wall": ((0.5, 0.0, 0.0), (0.5, 0.0, 0.0), (1.0, 0.0, 0.0), INSIDE),
    "wall and face at once": ((0.9, -0.9, 0.9), (0.4, -0.4, 0.4), (0.7, -0.7, 1.0), ZD),
    "too far for one reflection": ((0.0, 0.0, 0.0), (3.5, -3.5, 0.0), (-1.0, 1.0, 0.0), INSIDE),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_ends_where_it_should(name):
    p, delta, expected, face = STEPS[name]
    moved = move(
        torch.tensor([p]), torch.tensor([delta]), None, reflect=True, alive_N=torch.tensor([True])
    )
    torch.testing.assert_close(moved.p_N3, torch.tensor([expected]))
    assert moved.exit_N.tolist() == [face]
    torch.testing.assert_close(
        moved.distance_N, (torch.tensor([expected]) - torch.tensor([p])).norm(dim=-1)
    )


def test_without_reflection_flows_stop_at_the_wall():
    p_N3 = torch.tensor([[0.9, -0.9, 0.0]])
    delta_N3 = torch.tensor([[0.3, -0.3, 0.1]])
    moved = move(p_N3, delta_N3, None, reflect=False, alive_N=torch.tensor([True]))
    torch.testing.assert_close(moved.p_N3, torch.tensor([[1.0, -1.0, 0.1]]))


def test_noise_moves_and_can_carry_a_flow_out():
    p_N3 = torch.tensor([[0.0, 0.0, 0.8]])
    delta_N3 = torch.tensor([[0.1, 0.0, 0.1]])
    noise_N3 = torch.tensor([[0.05, -0.05, 0.2]])
    moved = move(p_N3, delta_N3, noise_N3, reflect=True, alive_N=torch.tensor([True]))
    torch.testing.assert_close(moved.p_N3, torch.tensor([[0.15, -0.05, 1.0]]))
    assert moved.exit_N.tolist() == [ZD]


def test_flows_that_are_not_alive_stay_and_leave_by_no_face():
    p_N3 = torch.tensor([[0.5, 0.5, -1.0], [0.2, 0.2, 0.2]])
    delta_N3 = torch.full((2, 3), 0.9)
    moved = move(p_N3, delta_N3, delta_N3, reflect=True, alive_N=torch.tensor([False, False]))
    assert torch.equal(moved.p_N3, p_N3)
    assert moved.exit_N.tolist() == [INSIDE, INSIDE]
    assert moved.distance_N.tolist() == [0.0, 0.0]


def test_many_random_steps_stay_inside_the_box():
    draw = torch.Generator().manual_seed(1)
    p_N3 = torch.rand(2000, 3, generator=draw) * 2 - 1
    alive_N = torch.ones(2000, dtype=torch.bool)
    for _ in range(20):
        delta_N3 = torch.rand(2000, 3, generator=draw) - 0.5
        noise_N3 = 0.1 * torch.randn(2000, 3, generator=draw)
        moved = move(p_N3, delta_N3, noise_N3, reflect=True, alive_N=alive_N)
        p_N3 = moved.p_N3
        assert p_N3.abs().max() <= 1
        assert torch.equal(moved.exit_N == Z0, alive_N & (moved.p_N3[:, 2] == -1))
        alive_N = alive_N & (moved.exit_N == INSIDE)
        # From now on only flows that are alive may be on a face: those that left are set aside.
        p_N3 = torch.where(alive_N.unsqueeze(1), p_N3, 0.0)
    assert 0 < alive_N.sum() < 2000


def test_a_reflection_turns_the_gradient_round_and_a_face_ends_it():
    p_N3 = torch.tensor([[0.9, 0.0, 0.0], [0.0, 0.0, 0.9], [0.5, 0.5, 0.5]])
    delta_N3 = torch.tensor([[0.3, 0.1, 0.1], [0.1, 0.1, 0.3], [0.3, 0.3, 0.3]])
    delta_N3.requires_grad_()
    alive_N = torch.tensor([True, True, False])
    move(p_N3, delta_N3, None, reflect=True, alive_N=alive_N).p_N3.sum().backward()
    assert delta_N3.grad is not None
    assert delta_N3.grad.tolist() == [[-1, 1, 1], [1, 1, 0], [0, 0, 0]]


def test_positions_keep_fp32_beside_displacements_of_16_bits():
    p_N3 = torch.tensor([[0.123456789, 0.0, 0.0]])
    delta_N3 = torch.zeros(1, 3, dtype=torch.bfloat16)
    moved = move(p_N3, delta_N3, None, reflect=True, alive_N=torch.tensor([True]))
    assert torch.equal(moved.p_N3, p_N3)

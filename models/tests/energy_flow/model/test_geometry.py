"""All of a lattice step but its networks: nothing is read by the host, nothing is written over."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from holdfast_models.energy_flow.model.collection import Collected, collect, project
from holdfast_models.energy_flow.model.convergence import Convergence, ConvergenceState
from holdfast_models.energy_flow.model.movement import INSIDE, move
from holdfast_models.energy_flow.model.noise import Key, normal_N3
from holdfast_models.energy_flow.model.settings import ConvergenceSettings, LatticeSettings
from holdfast_models.energy_flow.model.spawn import children, place_children

LATTICE = LatticeSettings(width=4, height=3, depth=4)
BATCH, SLOTS = 2, 5
FIRST = BATCH * LATTICE.cells
ROWS = FIRST + BATCH * SLOTS
RULES = Convergence(ConvergenceSettings(least_steps=0))


def a_step(
    p_N3: torch.Tensor,
    delta_N3: torch.Tensor,
    step: torch.Tensor | int,
    splat: Literal["bilinear", "nearest"] = "bilinear",
) -> tuple[Collected, ConvergenceState]:
    """Noise, move, spawn, project, collect and check, as dense mode chains them."""
    device = p_N3.device
    index_N = torch.arange(ROWS, device=device)
    sample_N = torch.cat((index_N[:FIRST] // LATTICE.cells, (index_N[FIRST:] - FIRST) // SLOTS))
    alive_N = index_N < FIRST
    noise_N3 = 0.1 * normal_N3(Key(1, step), index_N, 0)
    moved = move(p_N3, delta_N3, noise_N3, reflect=True, alive_N=alive_N)
    alive_N = alive_N & (moved.exit_N == INSIDE)
    count_N = children(moved.distance_N, alive_N, 0.1, 2)
    used_B = torch.zeros(BATCH, dtype=torch.long, device=device)
    placed = place_children(moved.distance_N, count_N, sample_N, used_B, slots=SLOTS, most=2)
    row_R = torch.where(placed.born_R, placed.parent_R, index_N[FIRST:])
    new_N3 = torch.cat((moved.p_N3[:FIRST], p_N3[row_R]))
    alive_N = torch.cat((alive_N[:FIRST], placed.born_R))
    exit_N = moved.exit_N + project(new_N3, alive_N)
    state = RULES.start(device)
    done, made = (moved.exit_N != INSIDE).sum(), FIRST + placed.used_B.sum()
    state, _ = RULES.update(state, done, made, alive_N.sum(), 11)
    e_N = new_N3.sum(-1)
    got = collect(e_N, new_N3, index_N % 3, sample_N, exit_N != INSIDE, LATTICE, BATCH, splat=splat)
    return got, state


def test_a_step_reads_nothing_and_has_fixed_shapes():
    # Tensors without contents: a read by the host or a shape that hangs on values is an error.
    p_N3 = torch.empty(ROWS, 3, device="meta")
    for splat in ("bilinear", "nearest"):
        got, state = a_step(p_N3, p_N3, torch.empty((), dtype=torch.long, device="meta"), splat)
        assert got.surface_BS.shape == (BATCH, LATTICE.cells)
        assert state.stop.shape == ()


def test_a_read_would_be_seen():
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        bool(torch.empty((), device="meta") > 0)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        p_N3 = torch.empty(ROWS, 3, device="meta")
        p_N3[p_N3[:, 0] > 0]


def test_a_step_leaves_its_inputs_as_they_were_and_sends_them_a_gradient():
    draw = torch.Generator().manual_seed(0)
    p_N3 = torch.rand(ROWS, 3, generator=draw) * 2 - 1
    delta_N3 = (torch.rand(ROWS, 3, generator=draw) - 0.5).requires_grad_()
    before = p_N3.clone(), delta_N3.detach().clone(), p_N3._version, delta_N3._version
    first, _ = a_step(p_N3, delta_N3, 3)
    first.surface_BS.sum().backward()
    assert torch.equal(p_N3, before[0])
    assert torch.equal(delta_N3.detach(), before[1])
    assert (p_N3._version, delta_N3._version) == before[2:]
    assert delta_N3.grad is not None
    assert delta_N3.grad[:FIRST].abs().sum() > 0
    assert delta_N3.grad[FIRST:].eq(0).all()
    again, _ = a_step(p_N3, delta_N3, 3)
    assert torch.equal(again.surface_BS, first.surface_BS)
    other, _ = a_step(p_N3, delta_N3, 4)
    assert not torch.equal(other.surface_BS, first.surface_BS)

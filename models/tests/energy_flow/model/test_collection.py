"""The output surface against a loop over flows, and its gradients."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast_models.energy_flow.model.collection import Collected, collect, corners, project
from holdfast_models.energy_flow.model.coordinates import normalise, start_S3
from holdfast_models.energy_flow.model.movement import INSIDE, Z0, ZD
from holdfast_models.energy_flow.model.settings import LatticeSettings

LATTICE = LatticeSettings(width=5, height=4, depth=6)
BATCH = 3


def some_flows(number: int, seed: int = 0):
    draw = torch.Generator().manual_seed(seed)
    p_N3 = torch.rand(number, 3, generator=draw) * 2 - 1
    face_N = torch.randint(3, (number,), generator=draw)
    p_N3[:, 2] = torch.where(face_N == 0, p_N3[:, 2], torch.where(face_N == 1, -1.0, 1.0))
    return {
        "e_N": torch.randn(number, generator=draw),
        "p_N3": p_N3,
        "k_N": torch.randint(1, 9, (number,), generator=draw),
        "sample_N": torch.randint(BATCH - 1, (number,), generator=draw),  # the last one is empty
        "done_N": torch.rand(number, generator=draw) < 0.7,
    }


def surface_of(flows, **options) -> Collected:
    columns = (flows[name] for name in ("e_N", "p_N3", "k_N", "sample_N", "done_N"))
    return collect(*columns, lattice=LATTICE, batch=BATCH, **options)


def by_a_loop(flows, splat: str) -> list[list[float]]:
    """Section 7 of the specification, flow by flow, in Python's own numbers."""
    top = [[0.0] * LATTICE.cells for _ in range(BATCH)]
    low = [[0.0] * LATTICE.cells for _ in range(BATCH)]
    for e, (px, py, pz), k, b, done in zip(*(v.tolist() for v in flows.values()), strict=True):
        if not done:
            continue
        left = min(abs(pz + 1), abs(pz - 1))
        weight = math.exp(abs(e) / (1 + left) * (1 + 0.1 * k))
        x, y = (px + 1) / 2 * (LATTICE.width - 1), (py + 1) / 2 * (LATTICE.height - 1)
        for iy in range(LATTICE.height):
            for ix in range(LATTICE.width):
                if splat == "nearest":
                    share = float(ix == round(x) and iy == round(y))
                else:
                    share = max(0.0, 1 - abs(x - ix)) * max(0.0, 1 - abs(y - iy))
                top[b][iy * LATTICE.width + ix] += share * weight * e
                low[b][iy * LATTICE.width + ix] += share * weight
    return [
        [t / w if w else 0.0 for t, w in zip(*pair, strict=True)]
        for pair in zip(top, low, strict=True)
    ]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("splat", ["nearest", "bilinear"])
@pytest.mark.parametrize("number", [0, 8, 200])
def test_a_surface_equals_the_loop_over_flows(splat, deterministic, number):
    flows = some_flows(number)
    got = surface_of(flows, splat=splat, deterministic=deterministic)
    expected = torch.tensor(by_a_loop(flows, splat))
    torch.testing.assert_close(got.surface_BS, expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(got.filled_BS, expected != 0)
    assert got.surface_BS.shape == (BATCH, LATTICE.cells)


def test_cells_between_two_are_rounded_as_everywhere_else():
    place_N3 = torch.tensor([[0.5, 0.0, 0.0], [1.5, 0.0, 0.0], [2.5, 1.5, 6.0]])
    flows = some_flows(3) | {"p_N3": normalise(place_N3, LATTICE), "done_N": torch.ones(3).bool()}
    flows["sample_N"] = torch.zeros(3, dtype=torch.long)
    got = surface_of(flows, splat="nearest")
    torch.testing.assert_close(got.surface_BS, torch.tensor(by_a_loop(flows, "nearest")))
    assert got.filled_BS.nonzero().tolist() == [[0, 0], [0, 2], [0, 2 * 5 + 2]]


def test_equal_flows_in_a_cell_share_it():
    p_N3 = torch.tensor([[-1.0, -1.0, -1.0], [-1.0, -1.0, 1.0]])
    e_N, k_N = torch.tensor([0.5, -0.5]), torch.tensor([3, 3])
    here_N, done_N = torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool)
    got = collect(e_N, p_N3, k_N, here_N, done_N, LATTICE, 1, splat="nearest")
    assert got.surface_BS[0, 0] == 0
    assert got.filled_BS.sum() == 1
    # Half a box from a face it weighs less: exp(0.65) against exp(0.65 / 1.5).
    p_N3[1, 2] = 0.5
    got = collect(e_N, p_N3, k_N, here_N, done_N, LATTICE, 1, splat="nearest")
    share = 1 / (1 + math.exp(0.65 / 1.5 - 0.65))
    assert got.surface_BS[0, 0].item() == pytest.approx(0.5 * share - 0.5 * (1 - share))


def test_flows_at_rest_give_the_surface_back():
    surface_S = torch.randn(LATTICE.cells, generator=torch.Generator().manual_seed(3))
    p_S3 = start_S3(LATTICE)
    k_S = torch.full((LATTICE.cells,), 3)
    done_S = torch.ones(LATTICE.cells, dtype=torch.bool)
    for splat in ("nearest", "bilinear"):
        got = collect(surface_S, p_S3, k_S, 0 * k_S, done_S, LATTICE, 1, splat=splat)
        torch.testing.assert_close(got.surface_BS[0], surface_S, rtol=1e-4, atol=1e-5)


def test_bilinear_gradients_agree_with_finite_differences():
    flows = some_flows(40, seed=4)
    weight_BS = torch.randn(BATCH, LATTICE.cells, generator=torch.Generator().manual_seed(5))

    def loss(p_N3: torch.Tensor, e_N: torch.Tensor) -> torch.Tensor:
        got = surface_of(flows | {"p_N3": p_N3, "e_N": e_N})
        return (got.surface_BS * weight_BS).sum()

    # Not on a line between cells, at a face or without energy: there the slope is not one number.
    x_N, y_N = (flows["p_N3"][:, 0] + 1) * 2, (flows["p_N3"][:, 1] + 1) * 1.5
    clear_N = ((x_N - x_N.round()).abs() > 0.05) & ((y_N - y_N.round()).abs() > 0.05)
    clear_N &= (flows["p_N3"][:, 2].abs() < 0.9) & (flows["e_N"].abs() > 0.05)
    assert (clear_N & flows["done_N"]).sum() >= 5
    p_N3 = flows["p_N3"].clone().requires_grad_()
    e_N = flows["e_N"].clone().requires_grad_()
    slope_N3, slope_N = torch.autograd.grad(loss(p_N3, e_N), (p_N3, e_N))
    h = 2e-3
    for n in clear_N.nonzero().flatten().tolist():
        for axis in range(3):
            step_N3 = torch.zeros_like(p_N3)
            step_N3[n, axis] = h
            rise = loss(p_N3 + step_N3, e_N) - loss(p_N3 - step_N3, e_N)
            assert slope_N3[n, axis].item() == pytest.approx(
                rise.item() / 2 / h, rel=0.02, abs=4e-3
            )
        step_N = torch.zeros_like(e_N)
        step_N[n] = h
        rise = loss(p_N3, e_N + step_N) - loss(p_N3, e_N - step_N)
        assert slope_N[n].item() == pytest.approx(rise.item() / 2 / h, rel=0.02, abs=4e-3)
    assert slope_N3[clear_N & flows["done_N"], :2].abs().min() > 0


def test_sorted_sums_have_the_same_gradient():
    flows = some_flows(100, seed=6)
    slopes = []
    for deterministic in (False, True):
        e_N = flows["e_N"].clone().requires_grad_()
        p_N3 = flows["p_N3"].clone().requires_grad_()
        got = surface_of(flows | {"e_N": e_N, "p_N3": p_N3}, deterministic=deterministic)
        slopes.append(torch.autograd.grad(got.surface_BS.square().sum(), (e_N, p_N3)))
    torch.testing.assert_close(slopes[0], slopes[1])


def test_a_flow_exactly_on_a_cell_still_has_a_gradient_to_its_neighbour():
    # At the start of a training all flows are there.
    p_N3 = normalise(torch.tensor([[1.0, 1.0, 3.0], [2.0, 1.0, 3.0]]), LATTICE).requires_grad_()
    e_N, k_N = torch.tensor([2.0, 0.5]), torch.tensor([3, 3])
    here_N, done_N = 0 * k_N, torch.ones(2, dtype=torch.bool)
    got = collect(e_N, p_N3, k_N, here_N, done_N, LATTICE, 1)
    (slope_N3,) = torch.autograd.grad(got.surface_BS[0, 1 * 5 + 2], p_N3)
    # Its share grows by 2 for each unit of x, with a weight relative to that of the neighbour.
    expected = 2 * (2.0 - 0.5) * math.exp((2.0 - 0.5) * 1.3 / 2)
    assert slope_N3[0, 0].item() == pytest.approx(expected, rel=1e-3)


def test_thousands_of_steps_and_large_energies_do_not_overflow():
    flows = some_flows(200) | {"k_N": torch.full((200,), 5000)}
    flows["e_N"] = flows["e_N"] * 4
    for splat in ("nearest", "bilinear"):
        e_N = flows["e_N"].clone().requires_grad_()
        got = surface_of(flows | {"e_N": e_N}, splat=splat)
        assert got.surface_BS.isfinite().all()
        assert got.surface_BS.abs().max() <= flows["e_N"].abs().max() * 1.001
        (slope_N,) = torch.autograd.grad(got.surface_BS.sum(), e_N)
        assert slope_N.isfinite().all()


def test_the_softmax_holds_where_its_exponents_are_far_apart():
    # Weights of 404, 303 and 50.5, each exactly on a cell: the second one shares that of the first,
    # and the strongest has no share in the cell of the weakest beside it.
    p_N3 = normalise(torch.tensor([[1.0, 0, 0], [1.0, 0, 0], [2.0, 0, 0]]), LATTICE)
    e_N, k_N = torch.tensor([4.0, -3.0, 0.5]), torch.full((3,), 1000)
    here_N, done_N = 0 * k_N, torch.ones(3, dtype=torch.bool)
    for splat in ("nearest", "bilinear"):
        got = collect(e_N, p_N3, k_N, here_N, done_N, LATTICE, 1, splat=splat)
        assert got.surface_BS[0, :4].tolist() == [0.0, 4.0, 0.5, 0.0]


def test_what_flows_hold_that_do_not_count_does_not_matter():
    flows = some_flows(50)
    clean = surface_of(flows)
    out_N = ~flows["done_N"]
    flows["e_N"] = flows["e_N"].masked_fill(out_N, torch.nan).requires_grad_()
    flows["p_N3"] = flows["p_N3"].masked_fill(out_N.unsqueeze(1), torch.nan).requires_grad_()
    got = surface_of(flows)
    torch.testing.assert_close(got.surface_BS, clean.surface_BS)
    slopes = torch.autograd.grad(got.surface_BS.sum(), (flows["e_N"], flows["p_N3"]))
    assert all(slope[out_N].eq(0).all() and slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("what", ["e_N", "p_N3"])
@pytest.mark.parametrize("splat", ["nearest", "bilinear"])
def test_a_nan_of_a_flow_that_counts_is_seen_on_its_surface(splat, what):
    flows = some_flows(20)
    flows["done_N"][4] = True
    flows[what] = flows[what].clone()
    flows[what][4] = torch.nan
    got = surface_of(flows, splat=splat)
    hit_B = got.surface_BS.isnan().any(1)
    assert hit_B.nonzero().flatten().tolist() == [flows["sample_N"][4].item()]


def test_energies_of_16_bits_are_summed_in_fp32():
    flows = some_flows(50)
    exact = surface_of(flows)
    flows["e_N"] = flows["e_N"].bfloat16()
    got = surface_of(flows)
    assert got.surface_BS.dtype == torch.float32
    torch.testing.assert_close(got.surface_BS, exact.surface_BS, rtol=0.05, atol=0.05)


def test_flows_still_alive_go_to_the_nearer_face():
    p_N3 = torch.zeros(5, 3)
    p_N3[:, 2] = torch.tensor([-0.5, 0.0, 0.001, 0.9, 0.9])
    alive_N = torch.tensor([True, True, True, True, False])
    assert project(p_N3, alive_N).tolist() == [Z0, Z0, ZD, ZD, INSIDE]


@pytest.mark.parametrize("width", [2, 5])
def test_corners_are_cells_of_the_surface_and_their_shares_add_up(width):
    lattice = LatticeSettings(width=width, height=3, depth=4)
    p_N3 = torch.tensor([[-1.0, -1, 0], [1, 1, 0], [1, -1, 0], [0.3, -0.2, 1], [-1.1, 1.1, 0]])
    cell_NJ, share_NJ = corners(p_N3, lattice)
    assert cell_NJ.min() >= 0
    assert cell_NJ.max() < lattice.cells
    torch.testing.assert_close(share_NJ.sum(-1), torch.ones(5))
    # The shares are those of an interpolation: they give the place back.
    x_NJ, y_NJ = cell_NJ % width, cell_NJ // width
    place_N2 = torch.stack(((share_NJ * x_NJ).sum(-1), (share_NJ * y_NJ).sum(-1)), -1)
    expected_N2 = (p_N3[:, :2].clamp(-1, 1) + 1) / 2 * torch.tensor([width - 1, 2])
    torch.testing.assert_close(place_N2, expected_N2)


@pytest.mark.gpu
def test_sorted_sums_on_a_gpu_are_the_same_to_the_last_bit_each_time():
    flows = {name: value.cuda() for name, value in some_flows(20_000).items()}
    results = []
    for _ in range(5):
        e_N = flows["e_N"].clone().requires_grad_()
        got = surface_of(flows | {"e_N": e_N}, deterministic=True)
        (slope_N,) = torch.autograd.grad(got.surface_BS.square().sum(), e_N)
        results.append(torch.cat((got.surface_BS.flatten(), slope_N)))
    assert all(torch.equal(result, results[0]) for result in results)

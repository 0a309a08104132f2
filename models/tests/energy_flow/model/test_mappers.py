from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from holdfast import HoldfastError
from holdfast_models.energy_flow.model.mappers import InputMapper, OutputMapper
from holdfast_models.energy_flow.model.settings import LatticeSettings, MapperSettings

E = 12
LATTICE = LatticeSettings(width=5, height=3, depth=4)
FORMS = pytest.mark.parametrize("rank", [None, 4])


def both(rank: int | None = None, **options) -> tuple[InputMapper, OutputMapper]:
    torch.manual_seed(0)
    settings = MapperSettings(rank=rank, **options)
    return InputMapper(E, LATTICE, settings), OutputMapper(E, LATTICE, settings)


def linear_widths(module: nn.Module) -> list[tuple[int, int]]:
    found = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return [(part.in_features, part.out_features) for part in found]


@FORMS
def test_an_embedding_becomes_a_surface_and_a_surface_an_embedding(rank):
    to_surface, to_embedding = both(rank)
    surface_BHW = to_surface(torch.randn(2, E))
    assert surface_BHW.shape == (2, 3, 5)
    assert to_embedding(surface_BHW.flatten(1)).shape == (2, E)


def test_the_full_form_and_the_low_rank_form_have_the_specified_widths():
    full, low = both(), both(rank=4)
    assert linear_widths(full[0]) == [(12, 30), (30, 30), (30, 15)]
    assert linear_widths(full[1]) == [(15, 30), (30, 30), (30, 12)]
    assert linear_widths(low[0]) == [(12, 4), (4, 15)]
    assert linear_widths(low[1]) == [(15, 4), (4, 12)]


@pytest.mark.parametrize(("side", "millions"), [(20, 1.6), (28, 4.9)])
def test_the_full_form_is_as_large_as_specified(side, millions):
    with torch.device("meta"):
        one = InputMapper(768, LatticeSettings(width=side, height=side), MapperSettings())
    assert sum(w.numel() for w in one.parameters()) / 1e6 == pytest.approx(millions, rel=0.02)


def test_above_1024_cells_the_low_rank_form_is_used():
    with torch.device("meta"):
        one = OutputMapper(384, LatticeSettings(width=50, height=50), MapperSettings())
    assert linear_widths(one) == [(2500, 1024), (1024, 384)]


def test_dropout_is_larger_on_the_side_of_the_embedding():
    shares = [[m.p for m in one.modules() if isinstance(m, nn.Dropout)] for one in both()]
    assert shares == [[0.1, 0.05], [0.05, 0.1]]


def test_hidden_layers_are_activated_and_then_normalised():
    kinds = [type(part) for part in both(rank=4)[0].spread.children()]
    assert kinds == [nn.Linear, nn.GELU, nn.LayerNorm, nn.Dropout, nn.Linear]


def test_a_surface_is_the_bounded_map_with_gain_shift_and_place():
    one = both()[0].eval()
    x_BE = torch.randn(2, E)
    with torch.no_grad():
        one.gain.fill_(2.0)
        one.shift.fill_(0.5)
        m_BHW = torch.tanh(one.spread(x_BE * math.sqrt(one.width))).view(2, 3, 5)
        torch.testing.assert_close(one(x_BE), 2.0 * m_BHW + 0.5 + one.place_HW)


def test_gain_shift_place_and_cell_weights_start_as_specified():
    torch.manual_seed(0)
    large = LatticeSettings(width=60, height=60)
    to_surface = InputMapper(E, large, MapperSettings(rank=2))
    assert (to_surface.gain.item(), to_surface.shift.item()) == (1.0, 0.0)
    assert to_surface.place_HW.std().item() == pytest.approx(0.02, rel=0.05)
    assert abs(to_surface.place_HW.mean().item()) < 0.002
    assert torch.equal(both()[1].weight_S, torch.ones(15))


def test_a_cell_whose_weight_is_zero_is_not_read():
    one = both()[1].eval()
    surface_BS = torch.randn(1, 15)
    other_BS = surface_BS + 3 * torch.eye(15)[4]
    assert not torch.allclose(one(surface_BS), one(other_BS))
    with torch.no_grad():
        one.weight_S[4] = 0
    assert torch.equal(one(surface_BS), one(other_BS))


@FORMS
def test_every_parameter_is_saved_and_receives_a_gradient(rank):
    pair = nn.ModuleList(both(rank))
    to_surface, to_embedding = pair
    to_embedding(to_surface(torch.randn(4, E)).flatten(1)).square().sum().backward()
    names = dict(pair.named_parameters())
    assert set(names) == set(pair.state_dict())
    for name, weight in names.items():
        assert weight.grad is not None and weight.grad.any(), name


@FORMS
def test_dropout_is_active_in_training_only(rank):
    for one, width in zip(both(rank), (E, 15), strict=True):
        given = torch.randn(3, width)
        assert not torch.equal(one(given), one(given))
        one.eval()
        assert torch.equal(one(given), one(given))


def test_what_has_another_width_is_refused_with_both_numbers():
    to_surface, to_embedding = both()
    with pytest.raises(HoldfastError, match=r"\[2, 13\] is given where \[batch, 12\]"):
        to_surface(torch.zeros(2, 13))
    with pytest.raises(HoldfastError, match=r"\[2, 3, 5\] is given where \[batch, 15\]"):
        to_embedding(torch.zeros(2, 3, 5))


def test_surfaces_are_of_full_precision_in_bfloat16():
    to_surface = both()[0]
    with torch.autocast("cpu", torch.bfloat16):
        assert to_surface(torch.randn(2, E)).dtype == torch.float32

"""B batch, S cells, P places of a text, D width of the bridge."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from holdfast import HoldfastError
from holdfast_models.energy_flow.text.encoder import EncoderLayer, TextEncoder
from holdfast_models.energy_flow.text.settings import BridgeSettings


def small(words: int = 20, cells: int = 12) -> TextEncoder:
    torch.manual_seed(0)
    return TextEncoder(words, cells, BridgeSettings(width=16, heads=4))


def test_surfaces_are_bounded_and_have_one_value_per_cell():
    ids_BP = torch.randint(1, 20, (3, 7))
    surface_BS = small()(ids_BP, ids_BP != 0)
    assert surface_BS.shape == (3, 12) and surface_BS.dtype == torch.float32
    assert surface_BS.abs().max() <= 1


def test_padding_changes_nothing():
    encoder = small().eval()
    ids_BP = torch.randint(1, 20, (2, 5))
    padded_BP = torch.cat((ids_BP, torch.zeros(2, 4, dtype=torch.int64)), dim=1)
    alone, padded = encoder(ids_BP, ids_BP != 0), encoder(padded_BP, padded_BP != 0)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-6)


def test_the_order_of_the_words_matters():
    encoder = small().eval()
    ids_BP = torch.tensor([[2, 3, 4, 5], [5, 4, 3, 2]])
    first_S, second_S = encoder(ids_BP, ids_BP != 0)
    assert (first_S - second_S).abs().max() > 1e-3


def test_every_parameter_learns():
    encoder = small()
    ids_BP = torch.randint(1, 20, (3, 7))
    encoder(ids_BP, ids_BP != 0).square().sum().backward()
    assert not [
        name
        for name, parameter in encoder.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]


def test_a_layer_is_the_post_norm_layer_of_torch():
    torch.manual_seed(0)
    own_part = EncoderLayer(16, 4, dropout=0.1).eval()
    torchs = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", batch_first=True).eval()
    attention = own_part.attention
    own = {
        "self_attn.in_proj_weight": (attention.query.weight, attention.key_value.weight),
        "self_attn.in_proj_bias": (attention.query.bias, attention.key_value.bias),
        "self_attn.out_proj.weight": (attention.out.weight,),
        "self_attn.out_proj.bias": (attention.out.bias,),
        "linear1.weight": (own_part.forward_part[0].weight,),
        "linear1.bias": (own_part.forward_part[0].bias,),
        "linear2.weight": (own_part.forward_part[3].weight,),
        "linear2.bias": (own_part.forward_part[3].bias,),
    }
    weights = {name: torch.cat(parts) for name, parts in own.items()}
    torchs.load_state_dict(torchs.state_dict() | weights)
    x_BPD, mask_BP = (
        torch.randn(3, 6, 16),
        torch.arange(6).expand(3, 6) < torch.tensor([[6], [4], [1]]),
    )
    expected_BPD = torchs(x_BPD, src_key_padding_mask=~mask_BP)
    torch.testing.assert_close(own_part(x_BPD, mask_BP)[mask_BP], expected_BPD[mask_BP])


def test_weights_start_as_specified():
    encoder = TextEncoder(30_522, 400, BridgeSettings())
    table = encoder.words.table.weight
    assert table.shape == (30_522, 256)
    assert table.std().item() == pytest.approx(0.02, rel=0.01)
    assert sum(p.numel() for p in encoder.parameters()) == pytest.approx(9e6, rel=0.05)
    layer = encoder.layers[0]
    assert isinstance(layer, EncoderLayer)
    linear = layer.attention.query
    assert linear.weight.abs().max().item() == pytest.approx((6 / 512) ** 0.5, rel=0.01)
    assert not linear.bias.any()
    waves_PD = encoder.words.positions
    assert waves_PD.shape == (512, 256) and waves_PD.requires_grad
    expected = torch.tensor([math.sin(3), math.cos(3)])
    torch.testing.assert_close(waves_PD.detach()[3, :2], expected)


def test_a_text_longer_than_the_positions_is_one_line():
    ids_BP = torch.ones(1, 513, dtype=torch.int64)
    with pytest.raises(HoldfastError, match="513 pieces, the bridge reads 512"):
        small()(ids_BP, ids_BP != 0)

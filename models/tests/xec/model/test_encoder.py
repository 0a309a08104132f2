from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast_models.xec.model.encoder import Encoder
from holdfast_models.xec.model.fusion import Fusion
from holdfast_models.xec.settings import EncoderSettings


def test_fusion_is_the_post_norm_encoder_of_torch():
    fusion = Fusion(32, 64, 2).eval()
    x = torch.randn(3, 6, 32)
    expected = x
    for own in fusion.layers:
        layer = nn.TransformerEncoderLayer(32, 8, 64, activation="gelu", batch_first=True).eval()
        names = {
            "query_key_value.weight": "self_attn.in_proj_weight",
            "query_key_value.bias": "self_attn.in_proj_bias",
            "out": "self_attn.out_proj",
            "attention_norm": "norm1",
            "widen": "linear1",
            "narrow": "linear2",
            "feedforward_norm": "norm2",
        }
        weights = {}
        for name, value in own.state_dict().items():
            stem, _, leaf = name.rpartition(".")
            weights[names.get(name) or f"{names[stem]}.{leaf}"] = value
        layer.load_state_dict(weights)
        expected = layer(expected)
    torch.testing.assert_close(fusion(x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"outer_mode": "split"}, {"outer_fine_pool": (2, 2)}])
def test_one_token_per_face_in_the_specified_order(options, make_events):
    encoder = Encoder(EncoderSettings(encoder_dim=32, **options)).eval()
    expected = ("inner", "us", "ds", "outer", "top", "bottom")
    if options.get("outer_mode") == "split":
        expected = ("inner", "outer_coarse", "outer_center", "us", "ds", "top", "bottom")
    assert encoder.tokens == expected
    tokens = encoder(make_events().x_BSC)
    assert tokens.shape == (2, len(expected), 32)
    assert encoder.place_TD.std().item() == pytest.approx(0.02, rel=0.3)


def test_a_face_reaches_its_own_token_alone_before_fusion(make_events):
    # Narrower ones tell little: a LayerNorm over one channel is 0, over two a sign.
    encoder = Encoder(EncoderSettings(encoder_dim=128)).eval()
    encoder.fusion = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    x = make_events().x_BSC
    tokens = encoder(x)
    for place, sensor in enumerate((7, 4310, 4460, 4750, 4600, 4670)):
        other = x.clone()
        other[:, sensor] += 5
        changed = (encoder(other) != tokens).any(-1)
        assert changed.all(0).tolist() == [place == token for token in range(6)]


def test_stochastic_depth_grows_with_depth():
    encoder = Encoder(EncoderSettings(encoder_dim=32, drop_path_rate=0.3))
    rates = [block.drop_path for block in (*encoder.backbone.early, *encoder.backbone.late)]
    assert rates == pytest.approx([0.0, 0.075, 0.15, 0.225, 0.3])
    assert [block.drop_path for block in encoder.hexagon.blocks] == pytest.approx(
        [0.0, 0.1, 0.2, 0.3]
    )

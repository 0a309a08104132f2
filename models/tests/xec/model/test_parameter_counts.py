"""The tables of parameter counts in 6.6 and 6.8 of the specification."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast_models.xec.model.encoder import Encoder
from holdfast_models.xec.model.inpainter import Inpainter
from holdfast_models.xec.model.mae import MaskedAutoencoder
from holdfast_models.xec.model.regressor import Regressor
from holdfast_models.xec.settings import (
    EncoderSettings,
    InpainterSettings,
    MaeSettings,
    RegressorSettings,
    TaskSettings,
    TasksSettings,
)

ON = TaskSettings(enabled=True)
FOUR = TasksSettings(angle=ON, energy=ON, timing=ON, uvwFI=ON)
SIZES = {  # width, layers: backbone, hexagon, fusion, encoder, a head, four, decoders, autoencoder
    (1024, 2): (140768, 403744, 25192448, 25743104, 1639938, 6559495, 19288332, 45031436),
    (512, 2): (39664, 354080, 6304768, 6701584, 853506, 3413767, 10768652, 17470236),
    (256, 2): (12152, 329248, 1579520, 1922456, 460290, 1840903, 6508812, 8431268),
    (128, 1): (4156, 316832, 198272, 520028, 263682, 1054471, 4378892, 4898920),
}
HEADS = {
    "per_face": ({}, 1455751),
    "token only": ({"use_local_context": False}, 794118),
    "masked_attention": ({"head_type": "masked_attention"}, 1453068),
    "cross_attention": ({"head_type": "cross_attention"}, 231105),
}


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("size", SIZES)
def test_every_part_has_as_many_parameters_as_specified(size):
    width, layers = size
    with torch.device("meta"):
        regressor = Regressor(RegressorSettings(encoder_dim=width, num_fusion_layers=layers), FOUR)
        mae = MaskedAutoencoder(MaeSettings(encoder_dim=width, num_fusion_layers=layers))
    encoder = regressor.encoder
    parts = (encoder.backbone, encoder.hexagon, encoder.fusion, encoder)
    parts += (regressor.heads["angle"], regressor.heads, mae.decoders, mae)
    assert tuple(map(count, parts)) == SIZES[size]
    if width == 1024:
        assert count(regressor) == 32302599


def test_four_fusion_layers_and_no_parameters_of_pooling():
    with torch.device("meta"):
        deep = Encoder(EncoderSettings(num_fusion_layers=4))
        bilinear = Encoder(EncoderSettings(pool="bilinear"))
    assert count(deep) == 50935552
    assert count(bilinear) == SIZES[1024, 2][3]


@pytest.mark.parametrize("family", HEADS)
def test_heads_of_the_inpainter_have_as_many_as_specified(family):
    options, expected = HEADS[family]
    with torch.device("meta"):
        heads = Inpainter(InpainterSettings(**options)).heads
    assert count(heads) == expected
    if family == "per_face":
        of_faces = [count(heads[name]) for name in ("inner", "us", "ds", "outer", "top", "bottom")]
        assert of_faces == [196161, 196161, 196161, 186050, 340609, 340609]


def test_tables_are_no_part_of_a_checkpoint():
    with torch.device("meta"):
        mae = MaskedAutoencoder(MaeSettings(encoder_dim=32))
    assert set(mae.state_dict()) == {name for name, _ in mae.named_parameters()}

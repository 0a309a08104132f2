"""Choice of hidden sensors and model are one graph: no host read, no shape that data decide."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from holdfast_models.xec.data.normalization import Inputs
from holdfast_models.xec.model.inpainter import Inpainter
from holdfast_models.xec.model.inpainting import attention_heads
from holdfast_models.xec.model.mae import MaskedAutoencoder
from holdfast_models.xec.model.masking import (
    drop_sensors,
    hide_flat,
    hide_random,
    valid_of,
    with_hidden,
)
from holdfast_models.xec.model.regressor import Regressor
from holdfast_models.xec.settings import (
    InpainterSettings,
    MaeSettings,
    NormalizationSettings,
    RegressorSettings,
    TaskSettings,
    TasksSettings,
)

NORMALIZATION = NormalizationSettings()
ON = TaskSettings(enabled=True, loss_fn="gaussian_nll")
TASKS = TasksSettings(
    energy=dataclasses.replace(ON, log_transform=True, against_light=True), angle=ON
)
HEADS = {
    "per_face": {"outer_fine_pool": (3, 3), "against_neighbours": True},
    "token only": {"use_local_context": False, "outer_mode": "split"},
    "masked_attention": {"head_type": "masked_attention"},
    "cross_attention": {"head_type": "cross_attention", "predict_channels": ("npho", "time")},
}


@pytest.fixture(autouse=True)
def forget_graphs():
    yield
    torch.compiler.reset()


def regression(model: nn.Module, inputs: Inputs, keys_BS: Tensor) -> Tensor:
    shown = drop_sensors(inputs, 0.1, keys_BS, NORMALIZATION)
    found = model(shown.x_BSC, valid_BSC=valid_of(shown))
    return torch.cat(list(found.values()), dim=-1)


def reconstruction(model: nn.Module, inputs: Inputs, keys_BS: Tensor) -> Tensor:
    channels = ("npho", "time")
    hidden_BS, maskable_BS = hide_random(inputs, 0.6, keys_BS, channels=channels, scale=1.5)
    shown = with_hidden(inputs, hidden_BS, NORMALIZATION)
    return model(shown.x_BSC, hidden_BS | ~maskable_BS, valid_of(shown))


def inpainting(model: nn.Module, inputs: Inputs, keys_BS: Tensor) -> Tensor:
    ratios = {"inner": 0.05, "outer": 0.1}
    hidden_BS, usable_BS = hide_flat(inputs, ratios, keys_BS, channels=("npho",))
    shown = with_hidden(inputs, hidden_BS, NORMALIZATION)
    return model(shown.x_BSC, hidden_BS, usable_BS, valid_of(shown))


class Glance(nn.Linear):
    """Stands for a backbone, which regressor and autoencoder trace: most of the time of a test."""

    def forward(self, x: Tensor, visible: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward((x * visible).flatten(1, -2).mean(1))


def check(step, model: nn.Module, inputs: Inputs) -> None:
    keys_BS = torch.rand(inputs.npho_BS.shape)
    compiled = torch.compile(step, fullgraph=True, backend="eager")
    torch.manual_seed(5)  # of dropout and stochastic depth
    found = compiled(model, inputs, keys_BS)
    torch.manual_seed(5)
    torch.testing.assert_close(found, step(model, inputs, keys_BS), atol=1e-4, rtol=1e-4)


def test_the_regressor_with_channel_dropout_and_stochastic_depth_is_one_graph(make_events):
    settings = RegressorSettings(encoder_dim=32, num_fusion_layers=1, drop_path_rate=0.5)
    model = Regressor(settings, TASKS)
    model.encoder.hexagon.blocks = model.encoder.hexagon.blocks[2:]  # two of four alike
    check(regression, model, make_events(2))


@pytest.mark.parametrize("decoder", ["conv", "pixel"])
def test_the_autoencoder_and_its_masks_are_one_graph(decoder, make_events):
    settings = MaeSettings(encoder_dim=32, num_fusion_layers=1, decoder_dim=8, decoder=decoder)
    model = MaskedAutoencoder(settings)
    if decoder == "pixel":
        model.encoder.backbone = model.encoder.hexagon = Glance(2, 32)  # pyright: ignore[reportAttributeAccessIssue]
    check(reconstruction, model, make_events(2))


# One of them in every run; the others differ in what they attend to.
@pytest.mark.parametrize(
    "head",
    [pytest.param(name, marks=[] if name == "per_face" else pytest.mark.slow) for name in HEADS],
)
def test_the_inpainter_and_its_masks_are_one_graph(head, make_events, monkeypatch):
    monkeypatch.setattr(attention_heads, "_HOPS", 1)  # 8 neighbours are as good as 24 to trace
    settings = InpainterSettings(encoder_dim=32, num_fusion_layers=1, **HEADS[head])
    model = Inpainter(settings)
    model.encoder.backbone = model.encoder.hexagon = Glance(2, 32)  # pyright: ignore[reportAttributeAccessIssue]
    check(inpainting, model.requires_grad_(False), make_events(1))


@pytest.mark.slow
def test_the_regressor_exports_for_any_number_of_events(make_events):
    settings = RegressorSettings(encoder_dim=32, num_fusion_layers=1)
    model = Regressor(settings, TASKS).eval()
    model.encoder.hexagon.blocks = model.encoder.hexagon.blocks[2:]  # two of four alike
    batch = torch.export.Dim("batch")
    example = (make_events(2).x_BSC,)
    exported = torch.export.export(model, example, dynamic_shapes=({0: batch},)).module()
    for count in (1, 3):
        x_BSC = make_events(count).x_BSC
        torch.testing.assert_close(exported(x_BSC), model(x_BSC), atol=1e-4, rtol=1e-4)

"""Choice of hidden sensors and model are one graph: no host read, no shape that data decide."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast_models.xec.data.normalization import Inputs
from holdfast_models.xec.model.inpainter import Inpainter
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
TASKS = TasksSettings(energy=ON, angle=ON)
HEADS = {
    "per_face": {"outer_fine_pool": (3, 3)},
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


def check(step, model: nn.Module, inputs: Inputs, backend: str = "eager") -> None:
    model.eval()
    keys_BS = torch.rand(inputs.npho_BS.shape)
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    with torch.set_grad_enabled(backend == "aot_eager"):
        found = compiled(model, inputs, keys_BS)
        torch.testing.assert_close(found, step(model, inputs, keys_BS), atol=1e-4, rtol=1e-4)
        if backend == "aot_eager":
            found.sum().backward()
            assert all(one.grad is not None for one in model.parameters())


def test_the_regressor_and_channel_dropout_are_one_graph_with_its_gradients(make_events):
    settings = RegressorSettings(encoder_dim=32, num_fusion_layers=1, drop_path_rate=0.1)
    check(regression, Regressor(settings, TASKS), make_events(2), backend="aot_eager")


@pytest.mark.parametrize("decoder", ["conv", "pixel"])
def test_the_autoencoder_and_its_masks_are_one_graph(decoder, make_events):
    settings = MaeSettings(encoder_dim=32, num_fusion_layers=1, decoder_dim=8, decoder=decoder)
    check(reconstruction, MaskedAutoencoder(settings), make_events(2))


@pytest.mark.parametrize("head", HEADS)
def test_the_inpainter_and_its_masks_are_one_graph(head, make_events):
    settings = InpainterSettings(encoder_dim=32, num_fusion_layers=1, **HEADS[head])
    check(inpainting, Inpainter(settings), make_events(2))


def test_training_with_stochastic_depth_is_one_graph(make_events):
    settings = RegressorSettings(encoder_dim=32, num_fusion_layers=1, drop_path_rate=0.5)
    model = Regressor(settings, TASKS).train()
    inputs = make_events(2)
    with torch.no_grad():
        step = torch.compile(regression, fullgraph=True, backend="eager")
        assert step(model, inputs, torch.rand(2, 4760)).shape == (2, 6)


def test_the_regressor_exports_for_any_number_of_events(make_events):
    settings = RegressorSettings(encoder_dim=32, num_fusion_layers=1)
    model = Regressor(settings, TASKS).eval()
    batch = torch.export.Dim("batch")
    example = (make_events(2).x_BSC,)
    exported = torch.export.export(model, example, dynamic_shapes=({0: batch},)).module()
    for count in (1, 3):
        x_BSC = make_events(count).x_BSC
        torch.testing.assert_close(exported(x_BSC), model(x_BSC), atol=1e-4, rtol=1e-4)


def test_the_inpainter_exports_for_any_number_of_events(make_events):
    settings = InpainterSettings(encoder_dim=32, num_fusion_layers=1, use_local_context=False)
    model = Inpainter(settings).eval()
    batch = {0: torch.export.Dim("batch")}

    def arguments(count: int) -> tuple[Tensor, Tensor, Tensor]:
        inputs = make_events(count)
        return inputs.x_BSC, torch.rand(count, 4760) < 0.05, inputs.npho_valid_BS

    exported = torch.export.export(
        model, arguments(2), dynamic_shapes=(batch, batch, batch)
    ).module()
    for count in (1, 3):
        given = arguments(count)
        torch.testing.assert_close(exported(*given), model(*given), atol=1e-4, rtol=1e-4)

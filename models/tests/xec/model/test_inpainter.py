from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.data.normalization import normalise, npho_from_scale
from holdfast_models.xec.model.fillings import NeighbourMean
from holdfast_models.xec.model.inpainter import Inpainter
from holdfast_models.xec.model.masking import hide_random, valid_of, with_hidden
from holdfast_models.xec.settings import InpainterSettings, NormalizationSettings

FAMILIES = {
    "per_face": {},
    "token only": {"use_local_context": False},
    "masked_attention": {"head_type": "masked_attention"},
    "cross_attention": {"head_type": "cross_attention"},
    "against neighbours": {"head_type": "cross_attention", "against_neighbours": True},
}
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)


def inpainter(family: str, **options) -> Inpainter:
    return Inpainter(InpainterSettings(encoder_dim=64, **FAMILIES[family], **options)).eval()


@EVERY_FAMILY
@pytest.mark.parametrize(
    "options",
    [
        {"predict_channels": ("npho",)},
        {"predict_channels": ("npho", "time"), "outer_mode": "split"},
        {"predict_channels": ("npho", "time"), "outer_fine_pool": (3, 3)},
    ],
)
def test_every_head_predicts_every_sensor_with_and_without_times(family, options, make_events):
    model = inpainter(family, **options)
    inputs = make_events(1)
    hidden_BS = torch.rand(1, 4760) < 0.05
    with torch.no_grad():
        pred = model(inputs.x_BSC, hidden_BS, inputs.npho_valid_BS)
    assert pred.shape == (1, 4760, len(options["predict_channels"]))
    assert pred.isfinite().all()
    assert len(pred[0, :, 0].unique()) > 1000  # not one value per face


@pytest.mark.parametrize(
    ("family", "outer_mode"),
    [*((family, "finegrid") for family in FAMILIES), ("masked_attention", "split")],
)
def test_predictions_do_not_depend_on_what_hidden_sensors_measured(
    family, outer_mode, make_events, normalization
):
    model = inpainter(family, outer_mode=outer_mode)
    inputs, others = make_events(1), make_events(1, seed=8)
    hidden_BS = hide_random(inputs, 0.1, torch.rand(1, 4760), channels=("npho",)).hidden_BS

    def predict(where_BS: torch.Tensor) -> torch.Tensor:
        """With the values of other events at these sensors."""
        pairs = zip(inputs, others, strict=True)
        truth = type(inputs)(
            *(
                torch.where(where_BS[..., None] if a.dim() == 3 else where_BS, b, a)
                for a, b in pairs
            )
        )
        shown = with_hidden(truth, hidden_BS, normalization)
        with torch.no_grad():
            return model(shown.x_BSC, hidden_BS, truth.npho_valid_BS, valid_of(shown))

    found = predict(torch.zeros_like(hidden_BS))
    assert (predict(hidden_BS) == found).all()
    assert (predict(~hidden_BS) != found).any()


@pytest.mark.parametrize("scheme", ["sqrt", "log1p"])
def test_against_neighbours_it_begins_at_their_mean(scheme, make_events):
    rules = NormalizationSettings(npho_scheme=scheme)
    settings = InpainterSettings(encoder_dim=64, **FAMILIES["against neighbours"])
    model = Inpainter(settings, rules).eval()
    for one in model.heads.parameters():
        torch.nn.init.zeros_(one)
    inputs = normalise(make_events(1).npho_BS.clamp(min=1), torch.zeros(1, 4760), rules)
    hidden_BS = torch.rand(1, 4760) < 0.05
    shown = with_hidden(inputs, hidden_BS, rules)
    pred_BSC = model(shown.x_BSC, hidden_BS, inputs.npho_valid_BS)
    found_BS = npho_from_scale(pred_BSC[..., 0], rules)
    expected_BS = NeighbourMean()(inputs.npho_BS, ~hidden_BS)
    torch.testing.assert_close(found_BS, expected_BS, rtol=1e-3, atol=1e-2)
    pred_BSC.sum().backward()
    grads = [one.grad for one in model.heads.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in grads)


def test_against_neighbours_needs_photons():
    with pytest.raises(HoldfastError, match="add npho"):
        inpainter("against neighbours", predict_channels=("time",))


def test_a_frozen_encoder_stays_in_evaluation_mode_and_learns_nothing(make_events):
    model = inpainter("token only").train()
    assert model.heads.training
    assert not any(module.training for module in model.encoder.modules())
    inputs = make_events(1)
    hidden_BS = torch.rand(1, 4760) < 0.05
    model(inputs.x_BSC, hidden_BS, inputs.npho_valid_BS).square().sum().backward()
    assert all(one.grad is None and not one.requires_grad for one in model.encoder.parameters())
    assert all(one.grad is not None for one in model.heads.parameters())


def test_an_encoder_that_is_not_frozen_learns(make_events):
    model = inpainter("token only", freeze_encoder=False).train()
    assert all(module.training for module in model.encoder.modules())
    inputs = make_events(1)
    hidden_BS = torch.rand(1, 4760) < 0.05
    model(inputs.x_BSC, hidden_BS, inputs.npho_valid_BS).square().sum().backward()
    assert all(one.grad is not None for one in model.encoder.parameters())


@EVERY_FAMILY
def test_an_event_with_every_sensor_dead_gives_finite_predictions(family):
    nothing = torch.zeros(1, 4760, dtype=torch.bool)
    with torch.no_grad():
        pred = inpainter(family)(torch.full((1, 4760, 2), -1.0), nothing, nothing)
    assert pred.isfinite().all()

from __future__ import annotations

import pytest
import torch

from holdfast_models.xec.model.mae import ConvDecoder, HexDecoder, MaskedAutoencoder, PixelDecoder
from holdfast_models.xec.model.masking import hide_random, valid_of, with_hidden
from holdfast_models.xec.settings import MaeSettings

SHAPES = [(93, 44), (24, 6), (45, 72), (15, 24), (9, 24), (5, 6)]


@pytest.mark.parametrize("kind", [ConvDecoder, PixelDecoder])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_decoder_predicts_every_cell_of_its_face(kind, shape):
    decoder = kind(32, 8, shape, 2)
    assert decoder(torch.randn(3, 32)).shape == (3, shape[0] * shape[1], 2)


def test_the_pixel_decoder_tells_neighbouring_cells_apart():
    token = torch.randn(1, 32)
    smooth, sharp = (kind(32, 8, (93, 44), 1)(token) for kind in (ConvDecoder, PixelDecoder))

    def roughness(values: torch.Tensor) -> float:
        """How far rows are from the straight line between those beside them."""
        image = values.detach().reshape(93, 44)
        return ((image[2:] - 2 * image[1:-1] + image[:-2]).std() / image.std()).item()

    assert roughness(sharp) > 2 * roughness(smooth)


def test_the_hexagonal_decoder_tells_nodes_apart():
    values = HexDecoder(32, 8, 2)(torch.randn(1, 32))
    assert values.shape == (1, 73, 2)
    assert len(values[0, :, 0].unique()) == 73


@pytest.mark.parametrize("decoder", ["conv", "pixel"])
@pytest.mark.parametrize("channels", [("npho",), ("npho", "time"), ("time",)])
@pytest.mark.parametrize("outer", [{}, {"outer_mode": "split"}, {"outer_fine_pool": (3, 3)}])
def test_every_sensor_is_predicted_in_every_mode(decoder, channels, outer, make_events):
    settings = MaeSettings(
        encoder_dim=32, decoder_dim=8, decoder=decoder, predict_channels=channels, **outer
    )
    inputs = make_events(1)
    with torch.no_grad():
        pred = MaskedAutoencoder(settings)(inputs.x_BSC, ~inputs.npho_valid_BS, valid_of(inputs))
    assert pred.shape == (1, 4760, len(channels))
    assert pred.isfinite().all()


@pytest.mark.parametrize("options", [{}, {"outer_mode": "split", "decoder": "pixel"}])
def test_predictions_do_not_depend_on_what_hidden_sensors_measured(
    options, make_events, normalization
):
    model = MaskedAutoencoder(MaeSettings(encoder_dim=128, decoder_dim=8, **options)).eval()
    inputs, others = make_events(1), make_events(1, seed=8)
    keys = torch.rand(1, 4760)
    hidden_BS, maskable_BS = hide_random(inputs, 0.6, keys, channels=("npho", "time"))

    def predict(truth) -> torch.Tensor:
        shown = with_hidden(truth, hidden_BS, normalization)
        # A sensor that is hidden counts as hidden, whatever it measured.
        unseen_BS = hidden_BS | ~(shown.time_valid_BS | hidden_BS)
        with torch.no_grad():
            return model(shown.x_BSC, unseen_BS, valid_of(shown))

    def mixed(where_BS: torch.Tensor):
        pairs = zip(inputs, others, strict=True)
        return type(inputs)(
            *(
                torch.where(where_BS[..., None] if a.dim() == 3 else where_BS, b, a)
                for a, b in pairs
            )
        )

    found = predict(inputs)
    assert (predict(mixed(hidden_BS)) == found).all()
    assert (predict(mixed(maskable_BS & ~hidden_BS)) != found).any()


def test_unseen_sensors_do_not_enter_the_blocks(make_events):
    """With everything unseen, tokens do not depend on any value."""
    model = MaskedAutoencoder(MaeSettings(encoder_dim=128, decoder_dim=8)).eval()
    everything = torch.ones(1, 4760, dtype=torch.bool)
    with torch.no_grad():
        one, other = (model(make_events(1, seed=seed).x_BSC, everything) for seed in (1, 2))
    torch.testing.assert_close(one, other)

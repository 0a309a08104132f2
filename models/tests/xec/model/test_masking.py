from __future__ import annotations

import math

import pytest
import torch

from holdfast_models.xec.geometry.layout import FACES, face_of_sensor
from holdfast_models.xec.model.masking import (
    drop_sensors,
    hide_flat,
    hide_random,
    valid_of,
    with_hidden,
)

BOTH, NPHO = ("npho", "time"), ("npho",)
CHOICES = pytest.mark.parametrize("hide", [hide_random, hide_flat])


def keys(count: int = 2, seed: int = 3) -> torch.Tensor:
    return torch.rand(count, 4760, generator=torch.Generator().manual_seed(seed))


@CHOICES
@pytest.mark.parametrize("channels", [BOTH, NPHO])
@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.29, 0.6, 0.7, 1.0])
def test_the_floor_of_the_ratio_is_hidden_of_each_event_with_a_tenth_dead(
    hide, channels, ratio, make_events
):
    inputs = make_events()
    hidden_BS, maskable_BS = chosen = hide(inputs, ratio, keys(), channels=channels)
    valid_BS = inputs.time_valid_BS if channels == BOTH else inputs.npho_valid_BS
    assert (maskable_BS == valid_BS).all()
    assert not (hidden_BS & ~maskable_BS).any()
    expected = [math.floor(ratio * one) for one in maskable_BS.sum(1).tolist()]
    assert hidden_BS.sum(1).tolist() == expected
    # Whatever share is dead: of the maskable sensors, ``ratio`` is hidden.
    assert chosen.actual_ratio().item() == pytest.approx(ratio, abs=1e-3)


def test_nothing_maskable_hides_nothing(make_events):
    inputs = make_events(dead=1.1)
    for hide in (hide_random, hide_flat):
        chosen = hide(inputs, 0.6, keys(), channels=NPHO)
        assert not chosen.hidden_BS.any()
        assert chosen.actual_ratio() == 0


@CHOICES
def test_the_same_keys_hide_the_same_sensors_and_others_do_not(hide, make_events):
    inputs = make_events()
    one, same, other = (
        hide(inputs, 0.3, some, channels=NPHO).hidden_BS for some in (keys(), keys(), keys(seed=4))
    )
    assert (one == same).all()
    assert (one != other).any()


def test_every_maskable_sensor_is_hidden_equally_often(make_events):
    inputs = make_events(1, dead=0.0)
    inputs = type(inputs)(*(one.expand(400, *one.shape[1:]) for one in inputs))
    often = hide_random(inputs, 0.6, keys(400), channels=NPHO).hidden_BS.float().mean(0)
    assert often.mean().item() == pytest.approx(0.6, abs=1e-3)
    assert often.std().item() == pytest.approx(math.sqrt(0.24 / 400), rel=0.1)


def test_stratification_hides_bright_sensors_more_often(make_events):
    inputs = make_events(8)
    bright_BS = inputs.npho_valid_BS & (inputs.npho_BS > 100)
    dark_BS = inputs.npho_valid_BS & ~bright_BS

    def shares(scale: float) -> tuple[float, float]:
        hidden = hide_random(inputs, 0.3, keys(8), channels=NPHO, scale=scale).hidden_BS
        assert hidden.sum() == hide_random(inputs, 0.3, keys(8), channels=NPHO).hidden_BS.sum()
        return tuple((hidden & one).sum().item() / one.sum().item() for one in (bright_BS, dark_BS))

    assert shares(1.0) == pytest.approx((0.3, 0.3), abs=0.02)
    more, less = shares(2.0)
    assert more == pytest.approx(2 * less, rel=0.05)
    more, less = shares(0.5)
    assert more == pytest.approx(0.5 * less, rel=0.05)


def test_the_flat_choice_is_flat_in_the_logarithm(normalization, make_events):
    inputs = make_events(4, dead=0.0)
    # Most sensors are dark, as in the detector: uniformly chosen ones would be, too.
    npho_BS = torch.where(keys(4, seed=9) < 0.9, 0.01 + keys(4), inputs.npho_BS)
    inputs = inputs._replace(npho_BS=npho_BS)

    def histogram(hide) -> torch.Tensor:
        hidden_BS = hide(inputs, 0.02, keys(4), channels=NPHO).hidden_BS
        light = npho_BS[hidden_BS].log10()
        return torch.histc(light, bins=7, min=-2, max=5)

    flat, uniform = histogram(hide_flat), histogram(hide_random)
    assert flat.sum() == uniform.sum() == 4 * 95
    assert (flat[2:] > 0.6 * flat.mean()).all()
    assert (uniform[3:] < 0.3 * uniform.mean()).all()


def test_the_flat_choice_takes_one_sensor_of_each_bin_that_has_any(make_events):
    inputs = make_events(1, dead=0.0)
    npho_BS = torch.full((1, 4760), 0.01)
    npho_BS[0, :3] = torch.tensor([1e4, 1e2, 1.0])
    chosen = hide_flat(inputs._replace(npho_BS=npho_BS), 0.05, keys(1), channels=NPHO)
    assert chosen.hidden_BS[0, :3].all()
    assert chosen.hidden_BS.sum() == 238


@CHOICES
def test_ratios_per_face_hide_on_these_faces_alone(hide, make_events):
    inputs = make_events()
    ratios = {"inner": 0.1, "outer": 0.5, "top": 1.0}
    hidden_BS, maskable_BS = hide(inputs, ratios, keys(), channels=NPHO)
    code_S = torch.as_tensor(face_of_sensor().copy())
    for code, face in enumerate(FACES):
        own = code_S == code
        expected = [
            math.floor(ratios.get(face, 0.0) * one) for one in maskable_BS[:, own].sum(1).tolist()
        ]
        assert hidden_BS[:, own].sum(1).tolist() == expected
    assert hidden_BS[:, 4742:].any()  # the dense sensors of the outer face


def test_hidden_sensors_look_dead(make_events, normalization):
    inputs = make_events()
    hidden_BS = hide_random(inputs, 0.6, keys(), channels=NPHO).hidden_BS
    shown = with_hidden(inputs, hidden_BS, normalization)
    assert (shown.x_BSC[hidden_BS] == torch.tensor([-1.0, -1.0])).all()
    assert (shown.npho_BS[hidden_BS] == 0).all()
    assert not valid_of(shown)[hidden_BS].any()
    torch.testing.assert_close(shown.x_BSC[~hidden_BS], inputs.x_BSC[~hidden_BS])
    assert (valid_of(shown)[~hidden_BS] == valid_of(inputs)[~hidden_BS]).all()
    assert shown.x_BSC.dtype == torch.float32


def test_dropped_sensors_are_dead_and_not_zero(make_events, normalization):
    inputs = make_events(8, dead=0.0)
    shown = drop_sensors(inputs, 0.1, keys(8), normalization)
    dropped_BS = ~shown.npho_valid_BS
    assert dropped_BS.float().mean().item() == pytest.approx(0.1, abs=0.01)
    assert (shown.x_BSC[dropped_BS] == -1).all()
    assert not shown.time_valid_BS[dropped_BS].any()

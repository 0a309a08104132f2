from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast_models.xec.data.batches import inputs_of, packed
from holdfast_models.xec.data.normalization import (
    NOT_AVAILABLE,
    normalise,
    npho_from_scale,
    npho_to_scale,
    time_from_scale,
)
from holdfast_models.xec.settings import NORMALIZATIONS, NormalizationSettings

SCHEMES = ("log1p", "anscombe", "sqrt", "linear")
LOWEST = {"log1p": -999.0, "anscombe": -0.375, "sqrt": 0.0, "linear": -np.inf}


def settings_of(scheme: str, **given: float) -> NormalizationSettings:
    return NormalizationSettings(npho_scheme=scheme, **given)  # pyright: ignore


def reference(npho, time, s: NormalizationSettings):
    """Section 4 of the specification once more, in float64 and one value at a time."""
    x, masks = np.empty((*npho.shape, 2)), np.empty((*npho.shape, 2), dtype=bool)
    for at in np.ndindex(npho.shape):
        n, t = float(npho[at]), float(time[at])
        dead = not np.isfinite(n) or n > 9e9
        timeless = dead or n < s.npho_threshold or not np.isfinite(t) or abs(t) > 9e9
        masks[at] = not dead, not timeless
        if dead:
            value = s.sentinel_npho
        elif n < LOWEST[s.npho_scheme] * (s.npho_scale / 1000 if s.npho_scheme == "log1p" else 1):
            value = 0.0
        elif s.npho_scheme == "log1p":
            value = np.log(1 + n / s.npho_scale) / s.npho_scale2
        elif s.npho_scheme == "anscombe":
            value = np.sqrt((n + 0.375) / (s.npho_scale + 0.375))
        elif s.npho_scheme == "sqrt":
            value = np.sqrt(n / s.npho_scale)
        else:
            value = n / s.npho_scale
        x[at] = value, s.sentinel_time if timeless else t / s.time_scale - s.time_shift
    return x, masks


def strange_events(count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    npho = rng.exponential(300, (count, 50)).astype(np.float32)
    time = rng.normal(2e-8, 2e-8, npho.shape).astype(np.float32)
    odd = [np.nan, np.inf, -np.inf, 1e10, 9.5e9, -5.0, -0.2, -900.0, -1e6, 0.0, 99.9, 100.0, 1.8e5]
    npho[:, : len(odd)] = odd
    time[:, 20:25] = [np.nan, np.inf, -np.inf, 1e10, -1e10]
    npho[:, 20:25] = 500.0
    return npho, time


@pytest.mark.parametrize("scheme", SCHEMES)
def test_values_come_back(scheme: str) -> None:
    settings = settings_of(scheme)
    npho = torch.tensor([0.0, 0.5, 7.0, 100.0, 1.4e3, 2e4, 1.8e5])
    back = npho_from_scale(npho_to_scale(npho, settings), settings)
    torch.testing.assert_close(back, npho, rtol=2e-5, atol=1e-3)
    time = torch.tensor([[-3e-8, 0.0, 1e-8, 9e-8]])
    inputs = normalise(torch.full_like(time, 200.0), time, settings)
    torch.testing.assert_close(
        time_from_scale(inputs.x_BSC[..., 1], settings), time, rtol=1e-5, atol=1e-13
    )


@pytest.mark.parametrize("preset", NORMALIZATIONS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_agrees_with_plain_numpy(scheme: str, preset: str) -> None:
    settings = NormalizationSettings(**{**NORMALIZATIONS[preset], "npho_scheme": scheme})
    npho, time = strange_events()
    inputs = normalise(torch.from_numpy(npho), torch.from_numpy(time), settings)
    x, masks = reference(npho, time, settings)
    assert (inputs.npho_valid_BS.numpy() == masks[..., 0]).all()
    assert (inputs.time_valid_BS.numpy() == masks[..., 1]).all()
    np.testing.assert_allclose(inputs.x_BSC.numpy(), x, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_17_2_float32_comes_out_whatever_goes_in(kind: type) -> None:
    npho = torch.from_numpy(np.array([[1.0, 200.0, np.nan]], dtype=kind))
    for scheme in SCHEMES:
        inputs = normalise(npho, npho * kind(1e-3), settings_of(scheme))
        assert inputs.x_BSC.dtype == inputs.npho_BS.dtype == torch.float32
        assert inputs.npho_valid_BS.dtype == inputs.time_valid_BS.dtype == torch.bool


def test_rules_in_their_order() -> None:
    settings = settings_of("sqrt", sentinel_npho=-3.0, sentinel_time=-2.0)
    npho = torch.tensor([[NOT_AVAILABLE, torch.nan, torch.inf, -torch.inf, -4.0, 50.0, 400.0]])
    time = torch.full_like(npho, 1e-8)
    inputs = normalise(npho, time, settings)
    x_SC = inputs.x_BSC[0]
    assert (x_SC[:4] == torch.tensor([-3.0, -2.0])).all()  # 1: dead, both sentinels
    assert x_SC[4].tolist() == [0.0, -2.0]  # 2: below the legal minimum, 0 and no time
    assert inputs.npho_valid_BS[0].tolist() == [False] * 4 + [True] * 3
    assert x_SC[5, 1] == -2.0  # 3: too few photons for a time
    assert inputs.time_valid_BS[0].tolist() == [False] * 6 + [True]
    assert inputs.npho_BS[0].tolist() == [0.0, 0.0, 0.0, 0.0, -4.0, 50.0, 400.0]


@pytest.mark.parametrize(("scheme", "lowest"), [("log1p", -998.0), ("linear", -1e6)])
def test_small_negative_counts_are_legal_where_the_scheme_allows(scheme: str, lowest: float):
    npho = torch.tensor([[-5.0, lowest]])
    x_SC = normalise(npho, npho, settings_of(scheme)).x_BSC[0]
    assert (x_SC[:, 0] < 0).all()
    back = npho_from_scale(x_SC[:, 0], settings_of(scheme))
    torch.testing.assert_close(back, npho[0], rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_value_makes_the_gradient_nan(scheme: str) -> None:
    npho, time = (torch.from_numpy(one).requires_grad_() for one in strange_events(2))
    inputs = normalise(npho, time, settings_of(scheme))
    inputs.x_BSC.square().sum().backward()
    assert npho.grad is not None and time.grad is not None
    zero = npho.detach() == 0  # the slope of a root at 0 is what it is
    assert npho.grad[~zero].isfinite().all() and time.grad.isfinite().all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_batch_gives_the_same_inputs_in_every_form(scheme: str) -> None:
    settings = settings_of(scheme, sentinel_npho=-1.2345)
    npho, time = map(torch.from_numpy, strange_events())
    raw = inputs_of({"npho": npho, "time": time}, settings)
    whole = {"x": raw.x_BSC, "npho_valid": raw.npho_valid_BS, "time_valid": raw.time_valid_BS}
    assert all(
        (a == b).all()
        for a, b in zip(inputs_of(whole | {"npho": raw.npho_BS}, settings), raw, strict=True)
    )
    half = inputs_of(packed(raw), settings)
    assert half.x_BSC.dtype == torch.float32
    assert (half.npho_valid_BS == raw.npho_valid_BS).all()
    assert (half.time_valid_BS == raw.time_valid_BS).all()
    assert (half.x_BSC[~raw.npho_valid_BS] == raw.x_BSC[~raw.npho_valid_BS]).all()
    torch.testing.assert_close(half.x_BSC, raw.x_BSC, rtol=2**-11, atol=2**-24)

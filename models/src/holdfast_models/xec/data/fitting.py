"""Scales of the normalisation from a sample of events: what ``normalization: fit`` suggests."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import torch

from holdfast import HoldfastError

from ..settings import DataSettings, NormalizationSettings
from .events import open_roots
from .normalization import normalise
from .root_files import scan

_EVENTS = 2000
_BRIGHT = 0.9999  # of photon counts, becomes 1
_TIMES = (0.005, 0.995)  # of times, become 0 and 1


class Fitted(NamedTuple):
    """Suggested settings, and what they come from."""

    settings: NormalizationSettings
    lines: list[str]


def fit_normalization(
    settings: DataSettings, normalization: NormalizationSettings, path: str, events: int = _EVENTS
) -> Fitted:
    """Scales with which the brightest sensors and the span of times become one.

    Args:
        settings: branches and tree.
        normalization: its scheme, threshold and sentinels are kept.
        path: a file, a folder or a pattern.
        events: how many to look at, some from every file.
    """
    photons, times = [], []
    for block in scan(open_roots(settings, path), ["npho", "time"], events):
        inputs = normalise(block["npho"], block["time"], normalization)
        photons.append(block["npho"][inputs.npho_valid_BS])
        times.append(block["time"][inputs.time_valid_BS])
    npho_N, time_N = torch.cat(photons).numpy(), torch.cat(times).numpy()
    lit_N = npho_N[npho_N >= normalization.npho_threshold]
    if not len(lit_N) or not len(time_N):
        raise HoldfastError(
            f"{path}: no sensor has a time and {normalization.npho_threshold:g} photons; lower "
            "normalization.npho_threshold, or look with `holdfast xec check-data`"
        )
    bright, middle = float(np.quantile(npho_N, _BRIGHT)), float(np.median(lit_N))
    early, late = (float(np.quantile(time_N, q)) for q in _TIMES)
    span = max(late - early, 1e-12)
    given = {"npho_scale": _rounded(bright), "npho_scale2": 1.0}
    if normalization.npho_scheme == "log1p":
        # The logarithm bends where half of the sensors that count are brighter.
        given = {"npho_scale": _rounded(middle), "npho_scale2": _rounded(np.log1p(bright / middle))}
    given |= {"time_scale": _rounded(span), "time_shift": _rounded(early / span)}
    lines = [
        f"photons: {_BRIGHT:.2%} of {len(npho_N)} counts are below {bright:.4g}, half of those "
        f"with a time below {middle:.4g}",
        f"times: {early:.3g} to {late:.3g} s hold {_TIMES[1] - _TIMES[0]:.0%} of {len(time_N)}",
        "normalization:",
        f"  npho_scheme: {normalization.npho_scheme}",
        *(f"  {key}: {value:g}" for key, value in given.items()),
    ]
    return Fitted(dataclasses.replace(normalization, **given), lines)


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")

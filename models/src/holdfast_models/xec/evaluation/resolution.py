"""How wide residuals are: fits of their core, widths that need no fit, profiles along the truth."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast import HoldfastError

Floats = NDArray[Any]

SHARE = 0.68
_REACH = 2.0  # the core is fitted within so many sigma
# A unit Gaussian cut at two sigma: its variance, and the variance of its square.
_CUT_VARIANCE, _CUT_SQUARE = 0.77374, 0.81748
_ROUNDS, _CLOSE = 60, 1e-6
_RESAMPLES, _SEED = 100, 20
_TOGETHER = 2_000_000  # numbers drawn at once
_FEWEST, _FEWEST_IN_BIN = 50, 5  # rows to fit two Gaussians to; rows of one point of a profile


class FittedCore(NamedTuple):
    """A Gaussian fitted to the rows within two sigma of its mean."""

    mean: float
    sigma: float
    mean_error: float
    sigma_error: float
    rows: int
    """Within two sigma."""

    def density(self, x: Floats) -> Floats:
        """Rows per unit of x."""
        return self.rows / 0.9545 * _gaussian(x, self.mean, self.sigma)


class DoubleGaussian(NamedTuple):
    """Rows, share of the core, then mean and sigma of core and tail; with errors and chi2."""

    values: Floats
    errors: Floats
    chi2: float
    ndf: int

    def density(self, x: Floats) -> Floats:
        """Rows per unit of x."""
        return _two_gaussians(x, *self.values)


class BinnedResiduals(NamedTuple):
    """Residuals in bins of another quantity; NaN in bins that hold too few rows."""

    centre: Floats
    bias: Floats
    bias_error: Floats
    width: Floats
    """Half of the central interval that holds 68 %."""
    width_error: Floats
    rows: NDArray[np.int64]


class EnergyResolution(NamedTuple):
    """Relative width of the energy in bins of the true energy, and its three terms if fitted."""

    energy: Floats
    sigma: Floats
    error: Floats
    terms: Floats | None
    """a in sqrt(GeV), b, c in GeV of (a / sqrt E) + b + (c / E), added in quadrature."""
    term_errors: Floats | None

    def curve(self, energy: Floats) -> Floats:
        """The fitted sigma / E."""
        assert self.terms is not None
        return _three_terms(energy, *self.terms)


def bootstrap_error(rows: Floats, statistic: Callable[[Floats], Floats]) -> Floats:
    """Standard deviation of a statistic over resamples of the rows; NaN of fewer than two rows.

    The seed is fixed, so that the same table gives the same figure.

    Args:
        rows: along the first axis.
        statistic: of many resamples at once: they are the first axis, rows the second.
    """
    if len(rows) < 2:
        return np.full(np.shape(statistic(rows[None]))[1:], np.nan)
    generator = np.random.default_rng(_SEED)
    some = max(1, _TOGETHER // rows.size)
    found: list[Floats] = []
    for first in range(0, _RESAMPLES, some):
        draws = (min(some, _RESAMPLES - first), len(rows))
        found.append(statistic(rows[generator.integers(len(rows), size=draws)]))
    return np.std(np.concatenate(found), axis=0, ddof=1)


def effective_sigma(values: Floats) -> float:
    """Half of the shortest interval that holds 68 % of the values; NaN of none."""
    ordered = np.sort(values)
    count = len(ordered)
    held = int(np.ceil(SHARE * count))
    if held < 2:
        return float("nan") if count == 0 else 0.0
    return float((ordered[held - 1 :] - ordered[: count - held + 1]).min() / 2)


def half_width(values: Floats) -> Floats:
    """Half of the central interval that holds 68 % of the values of the last axis; NaN of none."""
    if not values.shape[-1]:
        return np.full(values.shape[:-1], np.nan)
    low, high = np.quantile(values, ((1 - SHARE) / 2, (1 + SHARE) / 2), axis=-1)
    return (high - low) / 2


def core_fit(values: Floats) -> FittedCore:
    """Fit a Gaussian to the rows within two sigma, moving the window until it stays.

    The likelihood of a Gaussian cut at two sigma is largest where mean and variance of the rows
    inside are those of the cut Gaussian, so no histogram and no minimiser is needed.
    """
    values = np.asarray(values, dtype=np.float64)
    nan = float("nan")
    if len(values) < 3:
        return FittedCore(nan, nan, nan, nan, len(values))
    mean, sigma = float(np.median(values)), effective_sigma(values)
    inside = values
    for _ in range(_ROUNDS):
        inside = values[np.abs(values - mean) <= _REACH * sigma]
        if len(inside) < 3:
            break
        before = mean, sigma
        mean, sigma = float(inside.mean()), float(inside.std() / np.sqrt(_CUT_VARIANCE))
        if abs(mean - before[0]) + abs(sigma - before[1]) <= _CLOSE * sigma:
            break
    rows = max(len(inside), 1)
    errors = sigma / np.sqrt(_CUT_VARIANCE * rows), sigma / np.sqrt(_CUT_SQUARE * rows)
    return FittedCore(mean, sigma, float(errors[0]), float(errors[1]), len(inside))


def double_gaussian(values: Floats, *, bins: int = 100) -> DoubleGaussian | None:
    """Fit a core and a wider tail to the histogram; None where rows are few or no fit is found."""
    core = core_fit(values)
    if len(values) < _FEWEST or not core.sigma > 0:
        return None
    # In units of the core: the minimiser knows nothing of seconds and GeV.
    scaled = (np.asarray(values, dtype=np.float64) - core.mean) / core.sigma
    counts, edges = np.histogram(scaled, bins=bins, range=(-8, 8))
    centre, step = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    start = (len(values), 0.8, 0.0, 1.0, 0.0, 2.5)
    low, high = (0, 0, -2, 0.2, -6, 1.0), (np.inf, 1, 2, 2, 6, 20)
    fitted = _fit(
        lambda x, *terms: step * _two_gaussians(x, *terms),
        (centre, counts, np.sqrt(np.maximum(counts, 1))), start, (low, high),
    )  # fmt: skip
    if fitted is None:
        return None
    found, errors = fitted
    left = (counts - step * _two_gaussians(centre, *found)) / np.sqrt(np.maximum(counts, 1))
    unit = np.array([1, 1, core.sigma, core.sigma, core.sigma, core.sigma])
    shift = np.array([0, 0, core.mean, 0, core.mean, 0])
    ndf = bins - len(start)
    return DoubleGaussian(found * unit + shift, errors * unit, float((left**2).sum()), ndf)


def profile(along: Floats, residuals: Floats, *, bins: int = 20) -> BinnedResiduals:
    """Bias and 68 % width of residuals in bins of equal width of another quantity.

    The bins span all but the outermost percent of the rows; errors are bootstrapped.
    """
    bins = _affordable(bins, len(along))
    edges, which = _bins(along, bins)
    bias, bias_error, width, width_error = np.full((4, bins), np.nan)
    counts = np.bincount(which[(which >= 0) & (which < bins)], minlength=bins)
    for one in np.flatnonzero(counts >= _FEWEST_IN_BIN):
        own = residuals[which == one]
        bias[one], bias_error[one] = own.mean(), own.std(ddof=1) / np.sqrt(len(own))
        width[one], width_error[one] = half_width(own), bootstrap_error(own, half_width)
    centre = (edges[1:] + edges[:-1]) / 2
    return BinnedResiduals(centre, bias, bias_error, width, width_error, counts)


def energy_resolution(true: Floats, predicted: Floats, *, bins: int = 20) -> EnergyResolution:
    """sigma / E in bins of E from Gaussian core fits, with stochastic, constant and noise term."""
    bins = _affordable(bins, len(true))
    edges, which = _bins(true, bins)
    points: list[tuple[float, float, float]] = []
    for one in range(bins):
        own = which == one
        core = core_fit((predicted[own] - true[own]) / true[own])
        if core.rows >= _FEWEST_IN_BIN and core.sigma > 0:
            points.append((float((edges[one] + edges[one + 1]) / 2), core.sigma, core.sigma_error))
    energy, sigma, error = np.array(points).reshape(-1, 3).T
    fitted = None
    if len(points) > 3 and (energy > 0).all():
        middle = float(np.median(sigma))
        start = (middle * float(np.sqrt(energy.mean())) / 2, middle / 2, 1e-5)
        fitted = _fit(_three_terms, (energy, sigma, error), start, ((0, 0, 0), (np.inf,) * 3))
    return EnergyResolution(energy, sigma, error, *(fitted or (None, None)))


def _affordable(bins: int, rows: int) -> int:
    """Fewer bins where rows are so few that most points would be missing."""
    return max(1, min(bins, rows // (2 * _FEWEST_IN_BIN)))


def _bins(along: Floats, bins: int) -> tuple[Floats, NDArray[np.int64]]:
    """Edges of bins, and in which of them each row is."""
    low, high = np.quantile(along, (0.005, 0.995)) if len(along) else (0.0, 1.0)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    which = np.searchsorted(edges, along, side="right") - 1
    return edges, np.where(along == high, bins - 1, which)


def _fit(
    function: Callable[..., Floats], points: tuple[Floats, Floats, Floats], start: Any, limits: Any
) -> tuple[Floats, Floats] | None:
    """Parameters and errors of a least-squares fit of (x, y, error); None if it finds none."""
    if importlib.util.find_spec("scipy") is None:
        raise HoldfastError('no fits: scipy is not installed; pip install "holdfast-models[xec]"')
    import warnings

    from scipy import optimize

    x, y, error = points
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a covariance that cannot be had is tested below
        try:
            found, covariance = optimize.curve_fit(
                function, x, y, start, error, absolute_sigma=True, bounds=limits
            )
        except (RuntimeError, ValueError):
            return None
    errors = np.sqrt(np.diag(covariance))
    return (found, errors) if np.isfinite(found).all() else None


def _gaussian(x: Floats, mean: float, sigma: float) -> Floats:
    return np.exp(-0.5 * ((x - mean) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))


def _two_gaussians(
    x: Floats, rows: float, share: float, mean: float, sigma: float, tail: float, tail_sigma: float
) -> Floats:
    core = share * _gaussian(x, mean, sigma)
    return rows * (core + (1 - share) * _gaussian(x, tail, tail_sigma))


def _three_terms(energy: Floats, a: float, b: float, c: float) -> Floats:
    return np.sqrt((a / np.sqrt(energy)) ** 2 + b**2 + (c / energy) ** 2)

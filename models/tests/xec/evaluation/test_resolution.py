from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from holdfast import HoldfastError
from holdfast_models.xec.evaluation.resolution import (
    bootstrap_error,
    core_fit,
    double_gaussian,
    effective_sigma,
    energy_resolution,
    half_width,
    profile,
)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(4)


def test_effective_sigma_is_half_of_the_shortest_interval(generator: np.random.Generator) -> None:
    values = generator.exponential(size=101)
    ordered, held = np.sort(values), 69  # 68 % of 101, rounded up
    shortest = min(ordered[i + held - 1] - ordered[i] for i in range(101 - held + 1))
    assert effective_sigma(values) == pytest.approx(shortest / 2)
    assert effective_sigma(generator.normal(5, 2, 200_000)) == pytest.approx(0.9945 * 2, rel=0.02)
    assert np.isnan(effective_sigma(np.zeros(0))) and effective_sigma(np.ones(1)) == 0


def test_half_width_of_a_gaussian(generator: np.random.Generator) -> None:
    assert half_width(generator.normal(5, 2, 100_000)) == pytest.approx(0.9945 * 2, rel=0.02)


def test_the_core_is_found_under_tails_and_its_errors_are_right() -> None:
    pulls: list[tuple[float, float]] = []
    for seed in range(80):
        generator = np.random.default_rng(seed)
        core = core_fit(generator.normal(3.0, 0.7, 2000))
        pulls.append(((core.mean - 3) / core.mean_error, (core.sigma - 0.7) / core.sigma_error))
    assert np.abs(np.mean(pulls, axis=0)).max() < 0.5
    assert np.std(pulls, axis=0).min() > 0.75 and np.std(pulls, axis=0).max() < 1.25
    generator = np.random.default_rng(4)
    mixed = np.concatenate((generator.normal(3, 0.7, 5000), generator.normal(1, 6, 400)))
    assert core_fit(mixed).sigma == pytest.approx(0.7, rel=0.08)
    assert np.std(mixed) > 1.5


def test_two_gaussians_are_told_apart(generator: np.random.Generator) -> None:
    # In seconds: a minimiser must not care for units.
    values = np.concatenate((generator.normal(1, 1, 16000), generator.normal(0.5, 3, 4000))) * 1e-11
    found = double_gaussian(values)
    assert found is not None
    wanted = (20000, 0.8, 1e-11, 1e-11, 0.5e-11, 3e-11)
    pulls = np.abs(found.values - wanted) / found.errors
    assert pulls.max() < 4 and (found.errors[1:] < 0.2 * np.array(wanted[1:])).sum() >= 3
    assert found.chi2 / found.ndf < 1.6
    x = np.linspace(-2e-10, 2e-10, 4001)
    assert np.trapezoid(found.density(x), x) == pytest.approx(20000, rel=0.03)


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros(1), np.zeros(200), np.arange(3.0)])
def test_few_or_equal_rows_are_no_error(values: Any) -> None:
    core_fit(values)
    assert double_gaussian(values) is None
    found = profile(values, values)
    assert len(found.centre) == max(1, len(values) // 10), "few rows, few bins"
    assert energy_resolution(values + 1, values + 1).terms is None


def test_a_profile_finds_the_planted_bias_and_width(generator: np.random.Generator) -> None:
    along = generator.uniform(0, 10, 40_000)
    residual = 0.3 * along + generator.normal(0, 1 + 0.2 * along)
    found = profile(along, residual)
    assert len(found.centre) == 20 and found.rows.sum() == pytest.approx(0.99 * 40_000, rel=1e-3)
    bias = (found.bias - 0.3 * found.centre) / found.bias_error
    width = (found.width - 0.9945 * (1 + 0.2 * found.centre)) / found.width_error
    for pulls in (bias, width):
        assert np.abs(pulls).max() < 4 and 0.5 < pulls.std() < 1.6


def test_the_terms_of_the_energy_resolution_are_found(generator: np.random.Generator) -> None:
    energy = generator.uniform(0.005, 0.5, 60_000)
    sigma = np.sqrt((0.002 / np.sqrt(energy)) ** 2 + 0.01**2)
    found = energy_resolution(energy, energy * (1 + sigma * generator.normal(size=60_000)))
    assert found.terms is not None and found.term_errors is not None
    assert abs(found.terms[0] - 0.002) < 4 * found.term_errors[0]
    assert abs(found.terms[1] - 0.01) < 4 * found.term_errors[1] and found.term_errors[1] < 1e-3
    wanted = np.sqrt(4e-6 / found.energy + 1e-4)
    np.testing.assert_allclose(found.curve(found.energy), wanted, rtol=0.03)


def test_bootstrapped_errors_are_those_of_theory(generator: np.random.Generator) -> None:
    rows = generator.normal(0, 2, 400)
    assert bootstrap_error(rows, lambda draws: draws.mean(1)) == pytest.approx(0.1, rel=0.25)
    assert np.isnan(bootstrap_error(rows[:1], lambda draws: draws.mean(1)))


def test_without_scipy_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(HoldfastError, match=r"scipy.*holdfast-models\[xec\]"):
        double_gaussian(np.random.default_rng(0).normal(size=500))

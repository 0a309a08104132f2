"""Losses and norms as noisy but healthy trainings have them: nothing above information."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors.judge import Judge
from holdfast.probes.baseline import LOSS, NORM, Baseline
from holdfast.types import Severity

COUNT = 1500
T = np.arange(COUNT)


def noise(rng, memory, width):
    """A wandering series: ``memory`` of 0 forgets at once."""
    series = np.zeros(COUNT)
    for i in range(1, COUNT):
        series[i] = memory * series[i - 1] + width * rng.standard_normal()
    return series


def value_loss(rng):
    surprise = np.exp(noise(rng, 0.8, 0.4))
    return surprise * (1 + T / 200), np.exp(noise(rng, 0.8, 0.3)) * (1 + T / 300)


def generator(rng):
    waves = 2 + 1.5 * np.sin(T / 40) + 0.3 * rng.standard_normal(COUNT)
    return waves, np.exp(np.sin(T / 40) + 0.4 * rng.standard_normal(COUNT))


def summed(rng):
    return 1e5 * np.exp(-T / 500) * rng.lognormal(0, 0.3, COUNT), 1e6 * rng.lognormal(0, 0.5, COUNT)


def policy_gradient(rng):
    return rng.standard_normal(COUNT) * 3 - 1, rng.lognormal(0, 1.0, COUNT)


def likelihood(rng):
    return -3 + 2 * np.exp(-T / 100) + 0.2 * rng.standard_normal(COUNT), rng.lognormal(
        0, 0.4, COUNT
    )


def near_nothing(rng):
    return 2 * np.exp(-T / 60) * rng.lognormal(0, 0.5, COUNT), np.exp(-T / 90) * rng.lognormal(
        0, 0.5, COUNT
    )


def curriculum(rng):
    since = T % 500
    return 0.02 + 3 * np.exp(-since / 25) * rng.lognormal(0, 0.1, COUNT), (
        0.1 + 2 * np.exp(-since / 25)
    ) * rng.lognormal(0, 0.2, COUNT)


def warm_restarts(rng):
    rate = 0.5 * (1 + np.cos(np.pi * (T % 300) / 300))
    losses = (0.05 + 0.4 * rate) * rng.lognormal(0, 0.3, COUNT)
    return losses, (0.2 + rate) * rng.lognormal(0, 0.4, COUNT), 1e-3 * rate


def heavy_tails(rng):
    return rng.pareto(2.2, COUNT) + 1, rng.pareto(2.5, COUNT) + 1


HEALTHY = [
    value_loss, generator, summed, policy_gradient, likelihood, near_nothing, curriculum,
    warm_restarts, heavy_tails,
]  # fmt: skip


def rows_of(make_rows, losses, norms, rates=1e-3):
    """Rows as a guard that skips explosions and does nothing else would write them."""
    rows = make_rows(COUNT, loss=losses, grad_norm=norms, lr=rates)
    baseline = Baseline(20)
    names = ["loss_baseline", "loss_limit", "norm_baseline", "norm_limit"]
    for i, (loss, norm) in enumerate(zip(losses.tolist(), norms.tolist(), strict=True)):
        found = baseline.judge(loss, norm, loss_counts=True, norm_counts=True, may_skip=True)
        rows["outlier"][i], rows["skipped"][i] = found & (NORM | LOSS), found > (NORM | LOSS)
        rows[names][i] = baseline.numbers
    return rows


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", HEALTHY, ids=lambda kind: kind.__name__)
def test_noise_is_no_fault(make_rows, kind, seed):
    judge = Judge()
    judge.feed(rows_of(make_rows, *kind(np.random.default_rng(seed))))
    assert [f.message for f in judge.findings if f.severity > Severity.INFO] == []
    assert judge.errors == []


@pytest.mark.parametrize("kind", HEALTHY, ids=lambda kind: kind.__name__)
def test_a_batch_in_another_unit_is_seen_in_all_of_it(make_rows, kind):
    losses, norms, *rates = kind(np.random.default_rng(7))
    losses[700], norms[700] = 1e4 * np.abs(losses).max(), 1e4 * norms.max()
    judge = Judge()
    judge.feed(rows_of(make_rows, losses, norms, *rates))
    worst = judge.findings[0]
    assert (worst.code, worst.severity) == ("OPT002", Severity.WARNING)
    assert 700 in worst.evidence["steps"]

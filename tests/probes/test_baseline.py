from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest
import torch

from holdfast.probes.baseline import (
    EVENTS,
    LOSS,
    NORM,
    SKIP,
    SKIPS,
    WINDOW,
    Baseline,
)
from holdfast.probes.device_baseline import (
    JudgedStep,
    Terms,
    fresh_state,
    judge,
    learn_anew,
)

Pair = tuple[float, float]


def steady(count: int, seed: int = 0) -> Iterator[Pair]:
    rng = random.Random(seed)
    for i in range(count):
        yield 2 * math.exp(-i / 200) + rng.gauss(0, 0.05), math.exp(rng.gauss(0, 0.4))


def ask(baseline: Baseline, loss: float, norm: float, **terms: bool) -> int:
    terms = {"loss_counts": True, "norm_counts": True, "may_skip": True} | terms
    return baseline.judge(loss, norm, **terms)


def warm(count: int = 40, **kwargs: int) -> Baseline:
    baseline = Baseline(20, **kwargs)
    for loss, norm in steady(count):
        assert ask(baseline, loss, norm) == 0
    return baseline


def test_ready_after_the_warm_up_and_not_before() -> None:
    for known in (19, 20):
        baseline = Baseline(20)
        for loss, norm in steady(known):
            ask(baseline, loss, norm)
        assert bool(ask(baseline, 50.0, 1000.0)) == (known == 20)


def test_one_nan_or_a_wild_value_moves_nothing() -> None:
    baseline = warm()
    before = baseline.numbers
    for loss, norm in ((math.nan, 1.0), (1.0, math.nan), (math.inf, math.inf), (1e30, 1e30)):
        ask(baseline, loss, norm)
    assert baseline.numbers[0] == pytest.approx(before[0], rel=0.1)
    assert baseline.numbers[2] == pytest.approx(before[2], rel=0.3)
    assert ask(baseline, 100.0, 1e4) == NORM | LOSS | SKIP


def test_a_norm_alone_must_be_larger_than_together_with_the_loss() -> None:
    is_ordinary = warm().numbers[2]
    assert ask(warm(), 1.8, 6 * is_ordinary) == 0
    assert ask(warm(), 80.0, 40 * is_ordinary) & NORM
    assert ask(warm(), 1.8, 200 * is_ordinary) == NORM | SKIP
    assert ask(warm(), 1.8, 200 * is_ordinary, norm_counts=False) == 0
    assert ask(warm(), 80.0, 200 * is_ordinary, loss_counts=False) == NORM | LOSS | SKIP
    assert ask(warm(), 80.0, 6 * is_ordinary, loss_counts=False) == LOSS
    assert ask(warm(), 80.0, 200 * is_ordinary, may_skip=False) == NORM | LOSS


def test_units_do_not_matter() -> None:
    for scale in (1e-8, 1.0, 1e8):
        baseline = Baseline(20)
        for loss, norm in steady(60):
            assert ask(baseline, loss * scale, norm * scale) == 0
        assert ask(baseline, 100 * scale, 1e4 * scale) == NORM | LOSS | SKIP


def test_a_new_scale_is_believed_after_a_while() -> None:
    baseline = warm()
    answers = [ask(baseline, 100.0 + i % 3, 1e4 * (1 + i % 3)) for i in range(SKIPS + 40)]
    assert all(a & SKIP for a in answers[:SKIPS])
    assert not any(a & SKIP for a in answers[SKIPS:])


def test_what_returns_again_and_again_belongs_to_the_run() -> None:
    baseline = warm()
    skipped = 0
    for event in range(10):
        skipped += bool(ask(baseline, 30.0, 300.0) & SKIP)
        for loss, norm in steady(30, seed=event + 1):
            ask(baseline, loss, norm)
    assert skipped == EVENTS
    assert ask(baseline, 3e4, 3e5) & SKIP  # but this is more than the run is used to


def test_steady_growth_is_no_explosion() -> None:
    baseline = Baseline(20)
    norm = 1e-4
    for i in range(200):
        norm *= 1.3 if 50 < i < 90 else 1.0
        assert ask(baseline, 1.0, norm * (1 + 0.1 * (i % 3))) == 0


@pytest.mark.parametrize(("factor", "leaves_out"), [(6.0, False), (60.0, True)])
def test_gradients_that_come_back_by_leaps_are_no_explosion(
    factor: float, leaves_out: bool
) -> None:
    baseline = warm(64)
    is_ordinary = baseline.numbers[2]
    # Not far enough from usual to be one, and then ever further.
    answers = [ask(baseline, 1.0, is_ordinary * 7 * factor**i) for i in range(4)]
    assert bool(any(answer & SKIP for answer in answers)) == leaves_out


def test_heavy_tails_are_usual_where_they_are_usual() -> None:
    rng = random.Random(3)
    baseline = Baseline(20)
    flagged = 0
    for _ in range(2000):
        norm = math.exp(rng.gauss(0, 0.5)) * (30 if rng.random() < 0.1 else 1)
        flagged += bool(ask(baseline, rng.gauss(0, 1), norm) & SKIP)
    assert flagged <= 3


def test_noise_of_a_converged_run_is_no_spike() -> None:
    baseline = warm(60)
    for i in range(200):
        assert not ask(baseline, 1e-6 * (1 + (i * 37 % 11)), 1.0) & LOSS
    assert not ask(baseline, 1e-3, 1.0) & LOSS


def test_learning_anew_takes_the_level_for_usual() -> None:
    baseline = warm()
    assert ask(baseline, 50.0, 1.0) == LOSS
    baseline.learn_anew()
    for i in range(30):
        assert ask(baseline, 50.0 + i % 5, 1.0) == 0
    assert baseline.numbers[0] == pytest.approx(52, abs=2)
    assert ask(baseline, 5000.0, 1.0) == LOSS


def eventful(rng: random.Random, count: int) -> Iterator[Pair]:
    """A run with everything in it: outliers alone and in rows, NaN, a new level."""
    for i in range(count):
        norm = math.exp(rng.gauss(0, 0.5))
        loss = 2 * math.exp(-i / 100) + rng.gauss(0, 0.1)
        norm *= 10 ** rng.uniform(0, 4) if rng.random() < 0.03 else 1
        loss *= 10 ** rng.uniform(0, 2) if rng.random() < 0.03 else 1
        if count // 2 < i < count // 2 + 40:
            norm, loss = norm * 200, loss * 50
        yield (loss, math.nan) if rng.random() < 0.02 else (loss, norm)


@pytest.mark.parametrize("seed", range(6))
def test_host_and_device_say_the_same(seed: int) -> None:
    host, state = Baseline(20, refresh=0), fresh_state(torch.device("cpu"))
    for i, (loss, norm) in enumerate(eventful(random.Random(seed), 400)):
        flag = torch.tensor(float(math.isnan(norm)))
        square = torch.tensor(norm, dtype=torch.float64).square()
        answer = judge(JudgedStep(state, Terms(20)), square, torch.tensor(loss).double(), flag)
        if math.isnan(norm):
            assert answer[4] == 0
            continue
        bits = ask(host, loss, norm)
        assert int(answer[4]) == bits
        assert float(flag) == bool(bits & SKIP)
        assert answer[:4].tolist() == pytest.approx(host.numbers, nan_ok=True)
        if i == 300:
            host.learn_anew()
            learn_anew(state)


def test_clipping_on_the_device() -> None:
    state = fresh_state(torch.device("cpu"))
    host = Baseline(20, refresh=0)

    def factor(norm: float, **terms: float) -> float:
        square = torch.tensor(norm, dtype=torch.float64).square()
        asked = JudgedStep(state, Terms(20, **terms))  # type: ignore[arg-type]
        return float(judge(asked, square, None, torch.zeros(()))[5])

    assert factor(8.0, clip=2.0) == pytest.approx(0.25, rel=1e-5)
    assert factor(1.0, clip=2.0) == 1.0
    for _ in range(WINDOW):
        factor(1.0)
        ask(host, math.nan, 1.0)
    ask(host, math.nan, 1.0)
    assert factor(5.0, adaptive=True) == pytest.approx(host.clip_at / 5.0, rel=1e-5)
    assert factor(1000.0, adaptive=True) == 1.0  # left out: there is nothing to clip
    assert factor(1000.0, adaptive=True, may_skip=False) < 0.01
    scaled = JudgedStep(state, Terms(20, clip=2.0), torch.tensor(1024.0))
    square = torch.tensor(4.0 * 1024).double().square()
    assert float(judge(scaled, square, None, torch.zeros(()))[5]) == pytest.approx(0.5, rel=1e-5)

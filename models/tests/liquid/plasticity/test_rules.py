"""Rules against their kernels, plain loops and published behaviour.

B batch, T tokens, K inputs, U outputs.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.liquid.plasticity.rules import (
    RULES,
    VISUAL_CORTEX,
    VISUAL_CORTEX_TRIPLETS,
    BCMRule,
    HomeostaticRule,
    make_rule,
)
from holdfast_models.liquid.plasticity.timing import (
    PairRule,
    RuleParameters,
    TripletRule,
    past_trace,
)

NOW = RuleParameters(tau_plus=15.0, tau_minus=30.0)
YES = torch.tensor(True)


def spikes(steps: int, *times: int) -> Tensor:
    train_1T1 = torch.zeros(1, steps, 1, dtype=torch.float64)
    train_1T1[0, list(times)] = 1.0
    return train_1T1


def random_events(seed: int = 0, rate: float = 0.3) -> tuple[Tensor, Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    pre_BTK = (torch.rand(3, 37, 4, generator=made) < rate).double()
    post_BTU = (torch.rand(3, 37, 5, generator=made) < rate).double()
    return pre_BTK, post_BTU, torch.rand(5, 4, generator=made).double() - 0.5


def weights() -> Tensor:
    return torch.zeros(1, 1, dtype=torch.float64)


def test_one_pair_of_spikes_reproduces_the_kernel() -> None:
    rule, steps = PairRule(1), 240
    for distance in range(-100, 101):
        pre, post = spikes(steps, 110), spikes(steps, 110 + distance)
        found = rule.change(pre, post, weights(), NOW).total(NOW).item() * steps
        expected = 0.0
        if distance > 0:
            expected = 0.005 * math.exp(-distance / 15.0)
        elif distance < 0:
            expected = -0.00525 * math.exp(distance / 30.0)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15), distance


def test_weakening_is_anti_causal() -> None:
    """Pre before post must only strengthen, post before pre only weaken."""
    first, second = spikes(50, 10), spikes(50, 14)
    causal = PairRule(1).change(first, second, weights(), NOW)
    reverse = PairRule(1).change(second, first, weights(), NOW)
    assert causal.plus_UK.item() > 0 and causal.minus_UK.item() == 0
    assert reverse.plus_UK.item() == 0 and reverse.minus_UK.item() > 0


def loop_of(
    pre_BTK: Tensor,
    post_BTU: Tensor,
    now: RuleParameters,
    *,
    a3_plus: float = 0.0,
    a3_minus: float = 0.0,
    tau_x: float = 101.0,
    tau_y: float = 114.0,
) -> Tensor:
    """Events one after the other, as the rules are written in the papers."""
    batch, steps, _ = pre_BTK.shape
    dw_UK = torch.zeros(post_BTU.shape[2], pre_BTK.shape[2], dtype=torch.float64)
    for b in range(batch):
        r1, r2 = torch.zeros_like(pre_BTK[0, 0]), torch.zeros_like(pre_BTK[0, 0])
        o1, o2 = torch.zeros_like(post_BTU[0, 0]), torch.zeros_like(post_BTU[0, 0])
        for t in range(steps):
            pre_K, post_U = pre_BTK[b, t], post_BTU[b, t]
            dw_UK += torch.outer(post_U * (now.a_plus + a3_plus * o2), r1)
            dw_UK -= torch.outer(o1, pre_K * (now.a_minus + a3_minus * r2))
            r1 = math.exp(-1 / now.tau_plus) * (r1 + pre_K)
            o1 = math.exp(-1 / now.tau_minus) * (o1 + post_U)
            r2 = math.exp(-1 / tau_x) * (r2 + pre_K)
            o2 = math.exp(-1 / tau_y) * (o2 + post_U)
    return dw_UK / (batch * steps)


@pytest.mark.parametrize(
    ("rule", "triplets"),
    [
        (PairRule(5), {}),
        (TripletRule(5, a3_plus=2e-3, a3_minus=3e-3), {"a3_plus": 2e-3, "a3_minus": 3e-3}),
    ],
)
def test_matrix_products_equal_the_loop(rule: PairRule, triplets: dict[str, Any]) -> None:
    pre_BTK, post_BTU, fast_UK = random_events()
    found_UK = rule.change(pre_BTK, post_BTU, fast_UK, NOW).total(NOW)
    torch.testing.assert_close(
        found_UK, loop_of(pre_BTK, post_BTU, NOW, **triplets), rtol=1e-9, atol=1e-12
    )
    single_UK = rule.change(pre_BTK.float(), post_BTU.float(), fast_UK.float(), NOW).total(NOW)
    torch.testing.assert_close(single_UK.double(), found_UK, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [PairRule, TripletRule])
def test_derivatives_by_tau_are_those_of_finite_differences(kind: Any) -> None:
    rule = kind(5, softness=0.5)
    events = random_events(1)
    change = None
    for name in ("tau_plus", "tau_minus"):
        ends = [NOW._replace(**{name: getattr(NOW, name) + step}) for step in (1e-4, -1e-4)]
        totals = [rule.change(*events, now).total(now) for now in ends]
        rule.slopes = True
        change = rule.change(*events, NOW)
        found_UK = getattr(change, f"by_{name}_UK")
        assert found_UK.abs().max() > 0
        torch.testing.assert_close(found_UK, (totals[0] - totals[1]) / 2e-4, rtol=1e-5, atol=1e-12)


def test_slopes_are_not_computed_unless_asked_for() -> None:
    change = PairRule(5).change(*random_events(), NOW)
    assert not change.by_tau_plus_UK.any() and not change.by_tau_minus_UK.any()


def test_traces_hold_only_the_past() -> None:
    train = spikes(6, 2)
    assert past_trace(train, 10.0)[0].flatten()[:3].eq(0).all()
    assert past_trace(train, 10.0)[0].flatten()[3].item() == pytest.approx(math.exp(-0.1))


def test_soft_bounds_leave_no_room_at_the_bounds() -> None:
    pre_BTK, post_BTU, _ = random_events()
    rule = PairRule(5, -1.0, 1.0, softness=1.0)
    top = rule.change(pre_BTK, post_BTU, torch.ones(5, 4).double(), NOW)
    bottom = rule.change(pre_BTK, post_BTU, -torch.ones(5, 4).double(), NOW)
    assert not top.plus_UK.any() and top.minus_UK.any()
    assert bottom.plus_UK.any() and not bottom.minus_UK.any()


def test_triplets_turn_pairing_towards_strengthening_at_high_rates() -> None:
    """Sixty pairings, post 10 ms before pre, steps of 1 ms: 10 Hz weakens, 40 Hz strengthens."""
    rule = TripletRule(1, **VISUAL_CORTEX_TRIPLETS)

    def outcome(rule: PairRule, now: RuleParameters, period: int) -> float:
        times = range(20, 20 + 60 * period, period)
        post = spikes(60 * period + 60, *times)
        pre = spikes(60 * period + 60, *(time + 10 for time in times))
        return rule.change(pre, post, weights(), now).total(now).item() * pre.shape[1]

    assert outcome(rule, VISUAL_CORTEX, 100) < 0 < outcome(rule, VISUAL_CORTEX, 25)
    pairs = RuleParameters(tau_plus=16.8, tau_minus=33.7)
    assert outcome(PairRule(1), pairs, 100) < 0
    assert outcome(PairRule(1), pairs, 25) < 0, "pairs alone cannot show it"


def test_homeostatic_rates_converge_to_the_target() -> None:
    """Units whose rate grows with their weights, from above and below the target."""
    rule = HomeostaticRule(2, eta_rate=1.0, tau_rate=50.0, target_rate=0.2)
    now = RuleParameters(eta=0.5, a_plus=0.0, a_minus=0.0)
    made = torch.Generator().manual_seed(0)
    fast_UK = torch.tensor([[0.9, 0.9], [0.02, 0.02]])
    for _ in range(300):
        pre_BTK = torch.ones(4, 100, 2)
        chance_U = (fast_UK.sum(1) / 2).clamp(0, 1)
        post_BTU = (torch.rand(4, 100, 2, generator=made) < chance_U).float()
        rule.advance(post_BTU, YES)
        fast_UK = fast_UK + now.eta * rule.change(pre_BTK, post_BTU, fast_UK, now).total(now)
    assert torch.allclose(rule.rate_U, torch.full((2,), 0.2), atol=0.03)
    assert torch.allclose(fast_UK.mean(1), torch.full((2,), 0.2), atol=0.03)


def test_a_rate_starts_at_the_target_and_follows_slowly() -> None:
    rule = HomeostaticRule(3)
    assert rule.rate_U.tolist() == pytest.approx([0.1] * 3)
    rule.advance(torch.ones(2, 50, 3), YES)
    expected = 0.1 + (1 - math.exp(-50 / 1000)) * 0.9
    assert rule.rate_U.tolist() == pytest.approx([expected] * 3)


def test_bcm_changes_its_sign_at_the_threshold() -> None:
    rule = BCMRule(1, threshold=0.3)
    pre_BTK = torch.ones(1, 10, 1)

    def drive(rate: float) -> float:
        post_BTU = torch.full((1, 10, 1), rate)
        return rule.change(pre_BTK, post_BTU, torch.zeros(1, 1), NOW).total(NOW).item()

    assert drive(0.2) < 0 < drive(0.4)
    assert drive(0.3) == pytest.approx(0.0, abs=1e-8)
    assert drive(0.4) == pytest.approx(0.4 * 0.1)


def test_the_threshold_of_bcm_follows_the_squared_rate() -> None:
    rule = BCMRule(2, tau_threshold=100.0)
    rule.advance(torch.full((3, 50, 2), 0.8), YES)
    expected = 0.1 + (1 - math.exp(-0.5)) * (0.64 - 0.1)
    assert rule.threshold_U.tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize("name", ["homeostatic", "bcm"])
def test_averages_stand_still_in_a_skipped_step(name: str) -> None:
    rule = make_rule(name, 3, -1.0, 1.0)
    before = {key: value.clone() for key, value in rule.state_dict().items()}
    rule.advance(torch.ones(2, 50, 3), torch.tensor(False))
    assert all(torch.equal(value, before[key]) for key, value in rule.state_dict().items())


def test_an_unknown_rule_names_the_known_ones() -> None:
    with pytest.raises(HoldfastError, match=r"hebb.*classical.*bcm"):
        make_rule("hebb", 3, -1.0, 1.0)


def test_defaults_are_those_of_the_literature() -> None:
    for name, rule in RULES.items():
        eta = 0.001 if name == "bcm" else 0.01
        assert tuple(rule.start) == (eta, 20.0, 20.0, 0.005, 0.00525)
    assert set(RULES) == {"classical", "triplet", "homeostatic", "bcm"}

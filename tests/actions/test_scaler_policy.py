"""The calm scale: its numbers, overflows in a row, the floor, explosions, and how it is set."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.actions.scaler_policy import ScalerPolicy, apply_scaler_policy
from holdfast.config import ScalerSettings
from holdfast.records.steps import ScalerChange

INF = float("inf")


class Loop:
    """A training with a scaler, as everybody writes it."""

    def __init__(self, scaler: torch.amp.GradScaler, *, fused: bool = False) -> None:
        torch.manual_seed(0)
        self.scaler = scaler
        self.net = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, fused=fused)

    def step(self, factor: float = 1.0) -> float:
        """One iteration; returns the scale it leaves."""
        loss = self.net(torch.randn(8, 4)).square().mean() * factor
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale()

    def weights(self) -> torch.Tensor:
        return self.net.weight.detach().clone()


@pytest.mark.slow
def test_setting_the_private_scale_raises_on_the_second_overflow() -> None:
    """The trap this policy goes around; should torch forgive it one day, nothing is lost."""
    loop = Loop(torch.amp.GradScaler("cpu", init_scale=1024.0))
    loop.step(INF)
    loop.scaler._init_scale, loop.scaler._scale = 102.4, None
    with pytest.raises(AssertionError):
        loop.step(INF)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("overflows", [3, 30])
def test_overflows_in_a_row_are_survived_and_the_floor_holds(overflows: int, fused: bool) -> None:
    loop = Loop(apply_scaler_policy("cpu"), fused=fused)
    loop.step()
    before = loop.weights()
    scales = [loop.step(INF) for _ in range(overflows)]
    assert scales == [max(1024.0 * 0.5 ** (i + 1), 1.0) for i in range(overflows)]
    assert torch.equal(before, loop.weights())
    assert loop.step() == scales[-1]
    assert not torch.equal(before, loop.weights()), "training goes on"


def test_without_the_policy_there_is_no_floor() -> None:
    loop = Loop(torch.amp.GradScaler("cpu", init_scale=1024.0))
    assert min(loop.step(INF) for _ in range(30)) < 1e-5


def test_it_grows_by_half_after_two_hundred_clean_steps() -> None:
    loop = Loop(apply_scaler_policy("cpu"))
    assert {loop.step() for _ in range(199)} == {1024.0}
    assert loop.step() == 1536.0
    assert loop.step(INF) == 768.0
    assert {loop.step() for _ in range(199)} == {768.0}, "an overflow starts the count anew"
    assert loop.step() == 1152.0


def test_the_numbers_can_be_set() -> None:
    settings = ScalerSettings(init=64.0, growth=3.0, interval=2, backoff=0.25, floor=8.0)
    loop = Loop(apply_scaler_policy("cpu", settings))
    assert [loop.step() for _ in range(2)] == [64.0, 192.0]
    assert [loop.step(INF) for _ in range(3)] == [48.0, 12.0, 8.0]


def test_growth_can_be_off_and_the_floor_lower() -> None:
    loop = Loop(apply_scaler_policy("cpu", ScalerSettings(floor=0.25, growth=1.0, interval=1)))
    assert {loop.step() for _ in range(3)} == {1024.0}
    assert [loop.step(INF) for _ in range(20)][-1] == 0.25


# ---------------------------------------------------------------- explosions


def policy_and_loop(**settings: Any) -> tuple[ScalerPolicy, Loop]:
    policy, scaler = ScalerPolicy(ScalerSettings(**settings)), torch.amp.GradScaler("cpu")
    loop = Loop(scaler)
    policy.adopt(scaler)
    return policy, loop


def exploded(policy: ScalerPolicy, loop: Loop, outlier: torch.Tensor | None = None) -> float:
    policy.explosion(outlier)
    loop.step()
    policy.updated(loop.scaler)
    return loop.scaler.get_scale()


def test_an_explosion_divides_by_ten_down_to_the_floor() -> None:
    policy, loop = policy_and_loop()
    loop.step()
    scales = [exploded(policy, loop) for _ in range(5)]
    assert scales == pytest.approx([102.4, 10.24, 1.024, 1.0, 1.0])


def test_an_explosion_that_is_an_overflow_too_is_counted_once() -> None:
    policy, loop = policy_and_loop()
    loop.step()
    for how in (None, torch.tensor(1.0)):
        scale = loop.scaler.get_scale()
        policy.explosion(how)
        assert loop.step(INF) == scale / 2
        policy.updated(loop.scaler)
        assert loop.scaler.get_scale() == pytest.approx(scale / 10)


def test_a_loss_on_a_device_that_is_not_finite_counts_as_an_explosion() -> None:
    policy, loop = policy_and_loop()
    loop.step()
    for loss, expected in [(3.0, 1024.0), (INF, 102.4), (float("nan"), 10.24)]:
        policy.explosion(torch.tensor(0.0), torch.tensor([loss]))
        policy.updated(loop.scaler)
        assert loop.scaler.get_scale() == pytest.approx(expected)


def test_an_explosion_starts_the_count_of_clean_steps_anew() -> None:
    policy, loop = policy_and_loop(interval=3)
    loop.step()
    assert exploded(policy, loop) == pytest.approx(102.4)
    assert [loop.step() for _ in range(3)] == pytest.approx([102.4, 102.4, 153.6])


def test_the_bits_of_a_device_are_obeyed_without_being_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, loop = policy_and_loop()
    loop.step()

    def no_read(self: Any) -> Any:
        raise AssertionError("a host read")

    for bits, expected in [(0.0, 1024.0), (2.0, 1024.0), (3.0, 102.4), (1.0, 10.24)]:
        with monkeypatch.context() as patch:
            for name in ("item", "__bool__", "__float__", "tolist"):
                patch.setattr(torch.Tensor, name, no_read)
            policy.explosion(torch.tensor([bits]))
            policy.updated(loop.scaler)
        assert loop.scaler.get_scale() == pytest.approx(expected)
    policy.explosion(torch.tensor(float("nan")))
    policy.updated(loop.scaler)
    assert loop.scaler.get_scale() == pytest.approx(10.24), "not judged yet is no explosion"
    assert [exploded(policy, loop, torch.tensor(1.0)) for _ in range(3)][-1] == 1.0


def test_an_explosion_belongs_to_the_scaler_in_use() -> None:
    policy, loop = policy_and_loop()
    other = Loop(torch.amp.GradScaler("cpu"))
    policy.adopt(other.scaler)
    other.step()
    policy.explosion()
    loop.step()
    policy.updated(loop.scaler)
    assert loop.scaler.get_scale() == 1024.0
    policy.updated(other.scaler)
    assert other.scaler.get_scale() == pytest.approx(102.4)


# ---------------------------------------------------------------- whose scaler


def test_a_scaler_at_work_or_from_a_checkpoint_keeps_its_scale() -> None:
    loop = Loop(torch.amp.GradScaler("cpu", init_scale=4096.0))
    loop.step()
    ScalerPolicy(ScalerSettings()).adopt(loop.scaler)
    assert loop.scaler.get_scale() == 4096.0
    assert loop.scaler.get_growth_interval() == 200

    old = Loop(apply_scaler_policy("cpu"))
    old.step(INF)  # the count of clean steps is zero in its checkpoint
    fresh = torch.amp.GradScaler("cpu")
    fresh.load_state_dict(old.scaler.state_dict())
    ScalerPolicy(ScalerSettings()).adopt(fresh)
    assert fresh.get_scale() == 512.0


def test_each_scaler_is_reported_of_once_and_strangers_are_left_alone() -> None:
    reported: list[ScalerChange] = []
    policy, loop = (
        ScalerPolicy(ScalerSettings(), reported.append),
        Loop(torch.amp.GradScaler("cpu")),
    )
    loop.step()
    policy.updated(loop.scaler)
    assert loop.scaler.get_scale() == 65536.0
    assert not reported
    for _ in range(2):
        policy.adopt(loop.scaler)
        loop.step()
        policy.updated(loop.scaler)
    assert reported == [ScalerChange(what="policy", scale=65536.0)], "it had been at work"


def test_a_disabled_scaler_stays_disabled() -> None:
    scaler = apply_scaler_policy("cpu", enabled=False)
    assert Loop(scaler).step() == 1.0
    assert scaler.state_dict() == {}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_carries_the_policy_and_the_scale(copied: Any) -> None:
    loop = Loop(apply_scaler_policy("cpu"))
    loop.step(INF)
    again = Loop(copied(loop.scaler))
    assert again.scaler.get_scale() == 512.0
    assert [again.step(INF) for _ in range(30)][-1] == 1.0


def test_a_scale_set_by_hand_is_left_as_it_is() -> None:
    loop = Loop(apply_scaler_policy("cpu"))
    loop.step()
    loop.scaler.update(0.5)
    assert loop.scaler.get_scale() == 0.5


def test_a_resumed_scaler_goes_on_with_its_scale_and_the_numbers_of_now() -> None:
    loop = Loop(apply_scaler_policy("cpu"))
    loop.step(INF)
    fresh = apply_scaler_policy("cpu", ScalerSettings(growth=3.0, backoff=0.25, interval=7))
    fresh.load_state_dict(loop.scaler.state_dict())
    assert (fresh.get_scale(), fresh.get_growth_factor()) == (512.0, 3.0)
    assert (fresh.get_backoff_factor(), fresh.get_growth_interval()) == (0.25, 7)

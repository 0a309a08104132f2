from __future__ import annotations

import math

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.model.targets import OUTPUTS, TargetScale
from holdfast_models.xec.settings import TaskSettings


def test_the_specified_offsets_and_scales_are_the_defaults():
    expected = {
        "energy": ([0.0375], [0.0225]),
        "timing": ([0.0], [1e-9]),
        "uvwFI": ([0.0, 0.0, 5.0], [12.0, 35.0, 5.0]),
        "angle": ([90.0, 0.0], [15.0, 30.0]),
        "angleVec": ([0.0] * 3, [1.0] * 3),
    }
    for task, (offset, scale) in expected.items():
        target = TargetScale(task, TaskSettings())
        assert target.offset_K.tolist() == pytest.approx(offset)
        assert target.scale_K.tolist() == pytest.approx(scale)


@pytest.mark.parametrize("task", ["angle", "energy", "timing", "uvwFI"])
def test_a_target_comes_back_from_the_scale_of_the_network(task):
    target = TargetScale(task, TaskSettings())
    scaled = torch.randn(5, OUTPUTS[task])
    torch.testing.assert_close(target.scaled(target.physical(scaled)), scaled, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(target.physical(torch.zeros_like(scaled))[0], target.offset_K)


def test_a_logarithm_is_trained_and_its_exponential_returned():
    target = TargetScale("energy", TaskSettings(log_transform=True))
    energy = torch.tensor([[0.015], [0.0375], [0.06]])
    scaled = target.scaled(energy)
    expected = [math.log(one / 0.0375) / 0.6 for one in (0.015, 0.0375, 0.06)]
    assert scaled.flatten().tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(target.physical(scaled), energy)
    late = TargetScale("timing", TaskSettings(log_transform=True))
    assert late.scaled(torch.tensor([[1e-9 * math.e]])).item() == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("log", [False, True])
def test_a_variance_gets_the_unit_of_the_target(log):
    target = TargetScale("energy", TaskSettings(log_transform=log))
    mean, spread = torch.tensor([[0.2]]), 0.01
    physical = target.physical(torch.cat((mean, torch.full((1, 1), 2 * math.log(spread))), -1))
    higher = target.physical(mean + spread)
    sigma = math.exp(0.5 * physical[0, 1].item())
    assert physical[0, 0] == target.physical(mean)[0, 0]
    assert sigma == pytest.approx((higher - physical[:, :1]).item(), rel=0.01)


def test_own_offsets_and_scales_are_checked():
    one = TargetScale("uvwFI", TaskSettings(scale=(2.0,), offset=(1.0, 2.0, 3.0)))
    assert one.scale_K.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises(HoldfastError, match=r"tasks.uvwFI.scale has 2 numbers; give 3"):
        TargetScale("uvwFI", TaskSettings(scale=(1.0, 2.0)))
    with pytest.raises(HoldfastError, match=r"tasks.energy.scale is \[0.0\]"):
        TargetScale("energy", TaskSettings(scale=(0.0,)))
    with pytest.raises(HoldfastError, match="log_transform"):
        TargetScale("energy", TaskSettings(offset=(-1.0,), log_transform=True))

from __future__ import annotations

import pytest
import torch

from holdfast.checkpoint.finite import first_nonfinite, is_finite, nonfinite_places

FLOATS = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.float8_e5m2, torch.float8_e4m3fn, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_one_bad_element_is_found(dtype):
    values = torch.ones(1000)
    assert is_finite(values.to(dtype))
    # e4m3fn has no infinity: it would become the largest number
    for bad in (torch.nan, torch.inf, -torch.inf)[: 1 if dtype == torch.float8_e4m3fn else 3]:
        values[567] = bad
        assert not is_finite(values.to(dtype).view(10, 100))


def test_what_cannot_be_bad_is_not_looked_at():
    assert is_finite(torch.zeros(0)) and is_finite(torch.ones(3, dtype=torch.int64))
    assert is_finite(torch.tensor(True))


def test_a_parameter_with_a_gradient_can_be_looked_at():
    assert is_finite(torch.nn.Parameter(torch.ones(2)))


def test_only_weights_and_optimizer_state_poison_a_state():
    bad, fine = torch.tensor([torch.nan]), torch.ones(1)
    for part in ("models.m.w", "optimizers.0.state.1.exp_avg", "ema.e.w"):
        assert first_nonfinite(["models.m.a", part], [fine, bad]) == part
    for part in ("others.best", "scaler.scale", "dice.x", "gradients.0"):
        assert first_nonfinite([part], [bad]) is None


def test_a_mask_can_be_exempt():
    mask = torch.tensor([0.0, -torch.inf])
    assert first_nonfinite(["models.m.mask"], [mask]) == "models.m.mask"
    meant = {"models.m.mask": nonfinite_places(mask)}
    assert first_nonfinite(["models.m.mask"], [mask], meant) is None
    assert first_nonfinite(["models.m.mask"], [mask], {"models.m.mask": None}) is None
    for fewer in (torch.zeros(2), torch.tensor([5.0, -torch.inf])):
        assert first_nonfinite(["models.m.mask"], [fewer], meant) is None
    for other in ([torch.nan, -torch.inf], [0.0, torch.inf], [0.0, torch.nan], [torch.inf]):
        assert first_nonfinite(["models.m.mask"], [torch.tensor(other)], meant) == "models.m.mask"

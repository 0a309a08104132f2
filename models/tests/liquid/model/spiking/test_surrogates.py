import math

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.model.spiking.surrogates import SURROGATES, spike

# Around the threshold and exactly on it.
V = torch.tensor([-3.0, -0.9, -0.04, -1e-3, 0.0, 1e-3, 0.04, 0.9, 3.0], dtype=torch.float64)

FORMULAS = {
    "fast_sigmoid": lambda v, k: 1 / (1 + k * abs(v)) ** 2,
    "atan": lambda v, a: a / 2 / (1 + (math.pi * a * v / 2) ** 2),
    "sigmoid": lambda v, k: k * math.exp(-k * v) / (1 + math.exp(-k * v)) ** 2,
    "triangle": lambda v, g: g * max(0.0, 1 - abs(v)),
}
USUAL = {"fast_sigmoid": 25.0, "atan": 2.0, "sigmoid": 25.0, "triangle": 0.3}


def gradient(name, slope=None):
    v = V.clone().requires_grad_()
    spike(v, name, slope).sum().backward()
    assert v.grad is not None
    return v.grad


@pytest.mark.parametrize("name", SURROGATES)
@pytest.mark.parametrize("slope", [None, 4.0, torch.tensor(4.0)])
def test_gradient_is_the_formula(name, slope):
    k = USUAL[name] if slope is None else 4.0
    expected = torch.tensor([FORMULAS[name](v, k) for v in V.tolist()], dtype=torch.float64)
    torch.testing.assert_close(gradient(name, slope), expected)


@pytest.mark.parametrize("name", SURROGATES)
def test_forward_is_a_hard_step_that_is_zero_on_the_threshold(name):
    assert spike(V, name).tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["fast_sigmoid", "atan", "sigmoid"])
def test_gradient_is_that_of_snntorch(name):
    surrogate = pytest.importorskip("snntorch.surrogate")
    v = V.float().requires_grad_()
    getattr(surrogate, name)(USUAL[name])(v).sum().backward()
    torch.testing.assert_close(gradient(name).float(), v.grad)


def test_unknown_surrogate_is_named():
    with pytest.raises(HoldfastError, match="no surrogate gradient 'relu'"):
        spike(V, "relu")

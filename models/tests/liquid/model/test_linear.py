from __future__ import annotations

import pytest
import torch

from holdfast_models.liquid.model.linear import (
    attention_linear,
    he_linear,
    inverse_softplus,
    residual_linear,
    zero_linear,
)


@pytest.mark.parametrize(
    ("make", "deviation"),
    [
        (he_linear, (2 / 200) ** 0.5),
        (residual_linear, 0.1 * (2 / 300) ** 0.5),
        (attention_linear, (2 / 300) ** 0.5),
        (zero_linear, 0.0),
    ],
)
def test_weights_start_with_their_deviation_and_biases_at_zero(make, deviation):
    torch.manual_seed(0)
    linear = make(200, 100)
    assert linear.weight.shape == (100, 200) and (linear.bias == 0).all()
    assert linear.weight.std().item() == pytest.approx(deviation, rel=0.03)


def test_parts_beside_each_other_start_as_each_of_them_alone():
    torch.manual_seed(0)
    weight = attention_linear(200, 100, parts=3).weight
    for part in weight.chunk(3):
        assert part.std().item() == pytest.approx((2 / 300) ** 0.5, rel=0.03)


def test_inverse_softplus_holds_where_softplus_is_nearly_0_and_nearly_the_identity():
    y = torch.tensor([1e-4, 1e-2, 1.0, 30.0], dtype=torch.float64)
    torch.testing.assert_close(torch.nn.functional.softplus(inverse_softplus(y)), y)

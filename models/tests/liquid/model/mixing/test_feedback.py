from __future__ import annotations

import torch

from holdfast_models.liquid.model.mixing.feedback import MambaToLiquid, MambaToSpikes


def test_time_constants_start_unchanged_and_learn_within_their_bounds():
    scale, m_BTH = MambaToLiquid(8, 5), torch.randn(2, 7, 8)
    scale_BTU = scale(m_BTH)
    assert scale_BTU.shape == (2, 7, 5) and (scale_BTU == 1.0).all()
    (scale_BTU * torch.randn(2, 7, 5)).sum().backward()
    assert all((of.grad != 0).all() for of in scale.parameters())
    torch.nn.init.normal_(scale.proj.weight, std=3.0)
    found = scale(m_BTH)
    assert found.min() >= 0.5 and found.max() <= 1.5 and found.std() > 0.1


def test_feedback_is_a_current_between_0_and_1():
    torch.manual_seed(0)
    back, m_BTH = MambaToSpikes(8, 5), torch.randn(2, 7, 8)
    current_BTK = back(m_BTH)
    assert current_BTK.shape == (2, 7, 5)
    torch.testing.assert_close(current_BTK, torch.sigmoid(back.proj(m_BTH)))


def test_sampled_feedback_is_spikes_with_that_mean_and_gradient():
    torch.manual_seed(0)
    drawing, m_BTH = MambaToSpikes(8, 5, sample=True), torch.randn(1, 1, 8).expand(4000, 1, 8)
    chance_K = torch.sigmoid(drawing.proj(m_BTH[0, 0]))
    drawn_BTK = drawing(m_BTH)
    assert set(drawn_BTK.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn_BTK.mean((0, 1)), chance_K, rtol=0.0, atol=0.03)
    drawn_BTK.mean((0, 1)).sum().backward()
    expected = torch.autograd.grad(chance_K.sum(), drawing.proj.bias)[0]
    torch.testing.assert_close(drawing.proj.bias.grad, expected)

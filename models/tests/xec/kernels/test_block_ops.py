"""What surrounds the kernels, with plain torch in their place: runs anywhere.

The kernels themselves: ``test_block_kernels.py``.
"""

from __future__ import annotations

import math
import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from holdfast_models.xec.kernels import check, ops
from holdfast_models.xec.model.blocks import ConvNeXtBlock, seen
from holdfast_models.xec.model.regressor import Regressor
from holdfast_models.xec.settings import RegressorSettings, TaskSettings, TasksSettings


def _wide(d, half, eps):
    h = F.layer_norm(d, d.shape[-1:], half.norm_w, half.norm_b, eps)
    return h, h @ half.w1.t() + half.b1


def _seen(seen):
    return seen.unsqueeze(-1)


def squares(d, seen, half, eps):
    return (F.gelu(_wide(d, half, eps)[1]) * _seen(seen)).square().sum(1)


def applied(d, x, seen, half, scale, eps):
    g = F.gelu(_wide(d, half, eps)[1])
    return x + ((g * scale.unsqueeze(1) + half.beta) @ half.w2.t() + half.b2) * _seen(seen)


def toward_share(d, dout, seen, half, scale, eps):
    g, dy = F.gelu(_wide(d, half, eps)[1]), dout * _seen(seen)
    by_image = torch.einsum("npk,npc->nck", g, dy)
    dw2 = (by_image * scale.unsqueeze(1)).sum(0)
    return (by_image * half.w2).sum(1), dw2, dy.sum((0, 1))


def _du(d, dout, seen, half, scale, pull, eps):
    _, u = _wide(d, half, eps)
    share = torch.special.ndtr(u)
    slope = share + u * (-0.5 * u.square()).exp() / math.sqrt(2 * math.pi)
    dg = (dout * _seen(seen)) @ half.w2 * scale.unsqueeze(1) + u * share * pull.unsqueeze(1)
    return dg * slope * _seen(seen)


def gradients(d, dout, seen, half, scale, pull, eps):
    dh = _du(d, dout, seen, half, scale, pull, eps) @ half.w1
    apart = d - d.mean(-1, keepdim=True)
    rstd = (apart.square().mean(-1, keepdim=True) + eps).rsqrt()
    hat, dhat = apart * rstd, dh * half.norm_w
    along = (dhat * hat).mean(-1, keepdim=True)
    dd = rstd * (dhat - dhat.mean(-1, keepdim=True) - hat * along)
    return dd, torch.stack([one.sum((0, 1)) for one in (dh * hat, dh, dd)])


def weight_gradients(d, dout, seen, half, scale, pull, eps):
    du, (h, _) = _du(d, dout, seen, half, scale, pull, eps), _wide(d, half, eps)
    return torch.einsum("npk,npc->kc", du, h), du.sum((0, 1))


class BlockHalf(tuple):
    names = ("norm_w", "norm_b", "w1", "b1", "gamma", "beta", "w2", "b2")

    def __new__(cls, *parts):
        return super().__new__(cls, parts)

    def __getattr__(self, name):
        return self[self.names.index(name)]


def convolved(x, weight, bias, dtype):
    out = F.conv2d(x.permute(0, 3, 1, 2), weight, bias, padding=3, groups=len(weight))
    return out.permute(0, 2, 3, 1).to(dtype).contiguous()


def convolved_back(d, weight, add):
    d_NCHW = d.permute(0, 3, 1, 2)
    back = F.conv_transpose2d(d_NCHW, weight, padding=3, groups=len(weight))
    return add + back.permute(0, 2, 3, 1)


def filter_gradient(x, d, weight):
    x, d = x.permute(0, 3, 1, 2), d.permute(0, 3, 1, 2)
    return conv2d_weight(x, weight.shape, d, padding=3, groups=len(weight))


@pytest.fixture
def plain_kernels(monkeypatch):
    """Kernels in plain torch and full precision, and blocks that use them on a CPU."""
    names = {
        "response": [BlockHalf, squares, applied, toward_share, gradients, weight_gradients],
        "depthwise": [convolved, convolved_back, filter_gradient],
    }
    for name, functions in names.items():
        module = types.ModuleType(name)
        for one in functions:
            setattr(module, one.__name__, one)
        monkeypatch.setitem(sys.modules, f"holdfast_models.xec.kernels.{name}", module)
    monkeypatch.setattr(ops, "_PRODUCTS", torch.float32)
    monkeypatch.setattr(ConvNeXtBlock, "_fusible", lambda self, x: True)
    monkeypatch.setattr("holdfast_models.xec.model.blocks._STREAM", torch.float32)


def both_ways(block, x, visible):
    """Values and gradients of the plain block and of the one that uses kernels."""
    toward = torch.randn_like(x)
    for block.fused in (False, True):
        leaf = x.clone().requires_grad_()
        out = block(seen(leaf, visible), visible)
        yield out, *torch.autograd.grad(out, [leaf, *block.parameters()], toward)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_around_the_kernels_are_those_of_the_block(plain_kernels, masked):
    block, places = ConvNeXtBlock(4), (9, 8)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = torch.randn(3, *places, 4)
    visible = (torch.rand(3, *places, 1) < 0.5).float() if masked else None
    names = ["out", "x", *(name for name, _ in block.named_parameters())]
    for name, plain, fused in zip(names, *both_ways(block, x, visible), strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-3, msg=name)


def test_an_event_without_any_light_has_finite_gradients(plain_kernels):
    block = ConvNeXtBlock(4)
    nn.init.normal_(block.response.gamma)
    x, nothing = torch.randn(2, 9, 8, 4), torch.zeros(2, 9, 8, 1)
    for found in list(both_ways(block, x, nothing))[1]:
        assert found.isfinite().all()


def test_the_operators_go_through_the_compiler_in_one_graph(plain_kernels):
    block = ConvNeXtBlock(4)
    block.fused = True
    x = torch.randn(2, 9, 8, 4, requires_grad=True)
    compiled = torch.compile(lambda x: block(x), fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(x).square().sum(), [x, *block.parameters()])
    expected = torch.autograd.grad(block(x).square().sum(), [x, *block.parameters()])
    torch.testing.assert_close(found, expected)


def test_without_a_gpu_blocks_stay_plain_and_the_reason_is_reported():
    tasks = TasksSettings(energy=TaskSettings(enabled=True))
    model = Regressor(RegressorSettings(encoder_dim=64), tasks)
    blocks = [one for one in model.modules() if isinstance(one, ConvNeXtBlock)]
    assert len(blocks) == 5
    assert check.take(model, torch.device("cpu")) == "no kernels for cpu"
    assert not any(one.fused for one in blocks)


def test_kernels_that_compute_something_else_are_not_used(plain_kernels, monkeypatch):
    device = torch.device("cpu")
    check.fault.cache_clear()
    assert check.fault(4, device) is None
    check.fault.cache_clear()
    response = sys.modules["holdfast_models.xec.kernels.response"]
    twice = lambda *about: tuple(2 * one for one in weight_gradients(*about))  # noqa: E731
    monkeypatch.setattr(response, "weight_gradients", twice)
    assert "widen" in (check.fault(4, device) or "")
    check.fault.cache_clear()

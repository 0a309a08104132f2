from __future__ import annotations

import pytest
import torch

from holdfast_models.xec.geometry.neighbours import hexagonal_links
from holdfast_models.xec.model.blocks import ConvNeXtBlock, GlobalResponseNorm, HexNeXtBlock

BLOCKS = pytest.mark.parametrize(
    ("kind", "places"), [(ConvNeXtBlock, (9, 8)), (HexNeXtBlock, (73,))]
)


def trained(kind: type, channels: int, **options):
    """A block whose response norm and biases are no longer what they begin with."""
    block = kind(channels, **options)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block


def test_the_response_norm_is_the_formula_and_the_identity_at_first():
    norm, x = GlobalResponseNorm(3), torch.randn(2, 5, 4, 3)
    torch.testing.assert_close(norm(x), x)
    torch.nn.init.normal_(norm.gamma)
    torch.nn.init.normal_(norm.beta)
    for event, found in zip(x, norm(x), strict=True):
        size = (event**2).sum((0, 1)).sqrt()
        share = size / (size.mean() + 1e-6)
        torch.testing.assert_close(found, norm.gamma * event * share + norm.beta + event)


def test_the_response_norm_of_nothing_has_a_gradient():
    norm, x = GlobalResponseNorm(3), torch.zeros(1, 4, 3, requires_grad=True)
    torch.nn.init.normal_(norm.gamma)
    norm(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_hexagonal_mixing_is_a_sum_over_the_links():
    block = trained(HexNeXtBlock, 5)
    matrices = torch.zeros(5, 73, 73)
    for node, links in enumerate(hexagonal_links().tolist()):
        for slot, other in enumerate(links):
            if other >= 0:
                matrices[:, node, other] += block.weight[slot].detach()
    x = torch.randn(2, 73, 5)
    expected = torch.einsum("cij,bjc->bic", matrices, x) + block.bias
    torch.testing.assert_close(block.mix(x), expected, atol=1e-5, rtol=1e-5)


@BLOCKS
def test_a_masked_block_ignores_what_is_hidden_and_writes_nothing_there(kind, places):
    block = trained(kind, 4)
    x = torch.randn(2, *places, 4)
    visible = (torch.rand(2, *places, 1) < 0.4).float()
    other = torch.where(visible > 0, x, 7 * torch.randn_like(x))
    found = block(x, visible)
    torch.testing.assert_close(block(other, visible), found)
    assert (found * (1 - visible) == 0).all()
    assert (found * visible != 0).any()


@BLOCKS
def test_a_block_with_everything_visible_is_the_block_without_a_mask(kind, places):
    block = trained(kind, 4)
    x = torch.randn(2, *places, 4)
    torch.testing.assert_close(block(x, torch.ones(2, *places, 1)), block(x))


@BLOCKS
def test_stochastic_depth_skips_the_branch_of_whole_events_while_training(kind, places):
    block = trained(kind, 4, drop_path=0.5)
    x = torch.randn(32, *places, 4)
    branch = block.eval()(x) - x
    change = block.train()(x) - x
    skipped = (change == 0).flatten(1).all(1)
    assert 5 < skipped.sum() < 27
    torch.testing.assert_close(change[~skipped], 2 * branch[~skipped], atol=1e-4, rtol=1e-4)

from __future__ import annotations

import pytest
import torch

from holdfast_models.xec.model import backbone
from holdfast_models.xec.model.backbone import FaceBackbone, axis_weights

IMAGES = {  # the table of the specification: image, after stem, after downsampling
    (93, 44): ((92, 43), (46, 21)),
    (24, 6): ((23, 5), (11, 2)),
    (45, 72): ((44, 71), (22, 35)),
    (15, 24): ((14, 23), (7, 11)),
    (9, 24): ((8, 23), (4, 11)),
    (5, 6): ((4, 5), (2, 2)),
}


@pytest.mark.parametrize("shape", IMAGES)
def test_images_have_the_specified_sizes_and_end_as_a_token(shape):
    backbone = FaceBackbone(32, IMAGES)
    stem, down = IMAGES[shape]
    x = torch.randn(2, *shape, 2)
    assert backbone.stem(x.permute(0, 3, 1, 2)).shape[2:] == stem
    assert backbone.features(x).shape == (2, *down, 2)
    assert backbone(x).shape == (2, 32)


@pytest.mark.parametrize("pool", ["adaptive", "antialias", "attention", "bilinear"])
@pytest.mark.parametrize("shape", IMAGES)
def test_the_reduction_uses_every_position_but_for_bilinear(shape, pool):
    backbone = FaceBackbone(32, IMAGES, pool)
    x = torch.randn(1, *IMAGES[shape][1], 2, requires_grad=True)
    reduced = backbone._reduced(x)
    (reduced * torch.randn_like(reduced)).sum().backward()
    assert x.grad is not None
    used = (x.grad != 0).all(-1)
    if pool == "bilinear" and shape == (93, 44):
        assert (int(used.sum()), used.numel()) == (64, 966)
    elif pool != "bilinear":
        assert used.all()


@pytest.mark.parametrize("pool", ["adaptive", "antialias", "attention", "bilinear"])
def test_a_constant_map_stays_constant(pool):
    for length in (2, 4, 11, 46):
        weights = axis_weights(pool, length)
        torch.testing.assert_close(weights.sum(1), torch.ones(4))
    backbone = FaceBackbone(32, IMAGES, pool)
    torch.testing.assert_close(backbone._reduced(torch.ones(1, 46, 21, 2)), torch.ones(1, 2, 4, 4))


def test_adaptive_is_the_average_pooling_of_torch():
    x = torch.randn(2, 46, 21, 2)
    expected = torch.nn.functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 4)
    torch.testing.assert_close(FaceBackbone(32, IMAGES)._reduced(x), expected)


def test_a_position_is_hidden_when_every_cell_it_reads_is():
    backbone = FaceBackbone(32, IMAGES)
    for parameter in backbone.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    visible = torch.zeros(1, 24, 6, 1)
    visible[0, 10, 2] = 1  # read by stem rows 8 to 11 and columns 0 to 3
    features = backbone.features(torch.randn(1, 24, 6, 2), visible)
    rows, columns = (features != 0).any(-1)[0].nonzero().unbind(1)
    assert (rows.unique().tolist(), columns.unique().tolist()) == ([4, 5], [0, 1])


def test_the_stem_of_a_gpu_is_the_convolution():
    conv, x_BHWC = torch.nn.Conv2d(2, 4, 4, padding=1), torch.randn(2, 9, 7, 2)
    expected = conv(x_BHWC.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    torch.testing.assert_close(backbone._product_of_patches(x_BHWC, conv), expected)


def test_the_reduction_is_a_weighted_sum_along_both_axes():
    x_BHWC, rows, columns = torch.randn(2, 9, 7, 3), torch.rand(4, 9), torch.rand(4, 7)
    expected = torch.einsum("bhwc,ih,jw->bcij", x_BHWC, rows, columns)
    torch.testing.assert_close(backbone._weighted(x_BHWC, rows, columns), expected)

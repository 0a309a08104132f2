"""Images to classify that need no network: handwritten digits, and shapes drawn here.

Softmax regression on the pixels reaches about 0.97 of the digits and 0.31 of the shapes (0.125 is
chance), whose place, size and angle vary: a convolutional front can do much better there.

Shapes: N images, C channels, H and W their sides.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import HoldfastError

from .tensor_rows import TensorRows

SHAPES = ("disk", "ring", "square", "frame", "triangle", "cross", "bar", "two disks")
"""Classes of the shapes."""


class Images(NamedTuple):
    """Samples ``{"image": (C, H, W) float, "label": () int64}`` in two parts."""

    train: TensorRows
    validation: TensorRows
    classes: int


def digits(*, share: float = 0.2, seed: int = 0) -> Images:
    """1,797 digits of 8 x 8 pixels that scikit-learn brings."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise HoldfastError(
            'the digits need scikit-learn: pip install "holdfast-models[liquid]", or use shapes'
        ) from None
    pixels, label = load_digits(return_X_y=True)
    image_NCHW = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 8 - 1
    return _parts(image_NCHW, torch.from_numpy(label).long(), len(set(label)), share, seed)


def shapes(
    count: int = 4000, *, side: int = 16, noise: float = 0.2, share: float = 0.2, seed: int = 0
) -> Images:
    """Drawn shapes of any place, size, angle and contrast (0.7 to 1.3), in normal noise."""
    if count < 2 or side < 8:
        raise HoldfastError(f"{count} shapes of {side} pixels; give 2 or more, of 8 or more pixels")
    random = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, generator=random)

    label_N = torch.randint(len(SHAPES), (count,), generator=random)
    radius, turn = uniform(0.35, 0.6), uniform(0, 2 * math.pi)
    axis = torch.linspace(-1, 1, side)
    column, row = axis - uniform(-0.35, 0.35), axis[:, None] - uniform(-0.35, 0.35)
    x = (column * turn.cos() + row * turn.sin()) / radius
    y = (row * turn.cos() - column * turn.sin()) / radius
    distance_KNHW = torch.stack(_distances(x, y))
    distance_NHW = distance_KNHW[label_N, torch.arange(count)] * radius
    image_NHW = torch.sigmoid(-distance_NHW * side) * uniform(0.7, 1.3) - 0.5
    image_NHW += noise * torch.randn(image_NHW.shape, generator=random)
    return _parts(image_NHW[:, None], label_N, len(SHAPES), share, seed)


def images_of(name: str, seed: int, count: int = 4000) -> Images:
    """``digits``, or so many ``shapes``."""
    if name not in ("digits", "shapes"):
        raise HoldfastError(f"images {name!r} are not known; use digits or shapes")
    return digits(seed=seed) if name == "digits" else shapes(count, seed=seed)


def rotated(images: TensorRows, degrees: float) -> TensorRows:
    """The same images, turned about their centres."""
    image_NCHW, angle = images.tensors["image"], math.radians(degrees)
    turn_23 = [[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]]
    turn_N23 = image_NCHW.new_tensor(turn_23).expand(len(image_NCHW), 2, 3)
    grid = functional.affine_grid(turn_N23, list(image_NCHW.shape), align_corners=False)
    turned = functional.grid_sample(image_NCHW, grid, padding_mode="border", align_corners=False)
    return TensorRows(**images.tensors | {"image": turned})


def permuted(images: TensorRows, order: Tensor) -> TensorRows:
    """The same images with their H*W pixels in another order."""
    image_NCHW = images.tensors["image"]
    mixed_NCHW = image_NCHW.flatten(2)[..., order].view_as(image_NCHW)
    return TensorRows(**images.tensors | {"image": mixed_NCHW})


def of_classes(images: TensorRows, classes: tuple[int, ...]) -> TensorRows:
    """The images of some classes, which keep their labels."""
    own = torch.isin(images.tensors["label"], torch.tensor(classes))
    return TensorRows(**{name: rows[own] for name, rows in images.tensors.items()})


def _distances(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """How far each pixel is outside each shape of size 1; negative inside."""
    disk, square = torch.hypot(x, y) - 1, torch.maximum(x.abs(), y.abs()) - 0.85
    bar = torch.maximum(x.abs() - 1, y.abs() - 0.3)
    upright = torch.maximum(y.abs() - 1, x.abs() - 0.3)
    triangle = torch.maximum(-y - 0.5, 0.866 * x.abs() + 0.5 * y - 0.5)
    two = torch.hypot(x.abs() - 0.6, y) - 0.4
    ring, frame = (disk + 0.2).abs() - 0.2, (square + 0.2).abs() - 0.2
    return disk, ring, square, frame, triangle, torch.minimum(bar, upright), bar, two


def _parts(image_NCHW: Tensor, label_N: Tensor, classes: int, share: float, seed: int) -> Images:
    if not 0 < share < 1:
        raise HoldfastError(f"a validation share of {share}; give one between 0 and 1")
    order = torch.randperm(len(label_N), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(share * len(order)))
    train, validation = (
        TensorRows(image=image_NCHW[which], label=label_N[which])
        for which in (order[held:], order[:held])
    )
    return Images(train, validation, classes)

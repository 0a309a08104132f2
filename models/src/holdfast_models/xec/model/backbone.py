"""The backbones of the faces: one set of weights for all rectangular images, one for hexagons.

B events, H x W cells, N = 73 nodes, C channels, D width of a token.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .blocks import ConvNeXtBlock, HexNeXtBlock, channels_first, channels_last, seen

__all__ = ["FaceBackbone", "HexEncoder", "axis_weights"]

_SIDE = 4  # every image ends as 4 x 4 positions
_EPS = 1e-6
_HEX_BLOCKS = 4


class FaceBackbone(nn.Module):
    """A ConvNeXtV2 network from an image of any size to one token.

    Args:
        width: of the token, D.
        shapes: rows and columns of the images it is for.
        pool: how the last map is reduced to 4 x 4 positions.
        drop_path: stochastic depth of the last block; it grows linearly up to there.
    """

    def __init__(
        self,
        width: int,
        shapes: Iterable[tuple[int, ...]],
        pool: str = "adaptive",
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        channels = width // 32
        rates = [drop_path * depth / 4 for depth in range(5)]
        self.stem = nn.Conv2d(2, channels, 4, padding=1)
        self.stem_norm = nn.LayerNorm(channels, eps=_EPS)
        self.early = nn.ModuleList(ConvNeXtBlock(channels, rate) for rate in rates[:2])
        self.down_norm = nn.LayerNorm(channels, eps=_EPS)
        self.down = nn.Conv2d(channels, 2 * channels, 2, stride=2)
        self.late = nn.ModuleList(ConvNeXtBlock(2 * channels, rate) for rate in rates[2:])
        self.score = nn.Linear(2 * channels, 1) if pool == "attention" else None
        for length in sorted({(side - 1) // 2 for shape in shapes for side in shape}):
            self.register_buffer(f"axis_{length}", axis_weights(pool, length), persistent=False)

    def forward(self, x_BHWC: Tensor, visible_BHW1: Tensor | None = None) -> Tensor:
        """The token (B, D)."""
        return self._reduced(self.features(x_BHWC, visible_BHW1)).flatten(1)

    def features(self, x_BHWC: Tensor, visible_BHW1: Tensor | None = None) -> Tensor:
        """The map before it is reduced.

        Like a sparse convolution, a position after stem and downsampling is hidden when every
        cell it reads is. Were it hidden when any is, nothing would be left to an autoencoder.
        """
        x = self.stem_norm(self._stemmed(x_BHWC))
        visible = _any_visible(visible_BHW1, 4, stride=1, padding=1)
        x = seen(x, visible)
        for block in self.early:
            x = block(x, visible)
        x = channels_last(self.down(channels_first(self.down_norm(x))))
        visible = _any_visible(visible, 2, stride=2, padding=0)
        x = seen(x, visible)
        for block in self.late:
            x = block(x, visible)
        return x

    def _stemmed(self, x_BHWC: Tensor) -> Tensor:
        if not x_BHWC.is_cuda:
            return channels_last(self.stem(channels_first(x_BHWC)))
        # With two channels the library takes twice as long as a product of patches.
        return _product_of_patches(x_BHWC, self.stem)

    def _reduced(self, x_BHWC: Tensor) -> Tensor:
        """(B, C, 4, 4); each of the ways is a weighted sum along both axes."""
        weights = [self.get_buffer(f"axis_{n}").to(x_BHWC.dtype) for n in x_BHWC.shape[1:3]]
        if self.score is None:
            return _weighted(x_BHWC, *weights)
        score_BHW1 = self.score(x_BHWC)
        strength_BHW1 = (score_BHW1 - score_BHW1.amax((1, 2), keepdim=True).detach()).exp()
        sums = _weighted(x_BHWC * strength_BHW1, *weights)
        return sums / _weighted(strength_BHW1, *weights).clamp_min(1e-12)


class HexEncoder(nn.Module):
    """HexNeXt blocks on the nodes, and their mean as one token.

    Args:
        width: of the token, D.
        channels: of the nodes.
        drop_path: stochastic depth of the last block; it grows linearly up to there.
    """

    def __init__(self, width: int, channels: int, drop_path: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(2, channels), nn.LayerNorm(channels), nn.GELU())
        rates = [drop_path * depth / (_HEX_BLOCKS - 1) for depth in range(_HEX_BLOCKS)]
        self.blocks = nn.ModuleList(HexNeXtBlock(channels, rate) for rate in rates)
        self.norm = nn.LayerNorm(channels)
        self.token = nn.Linear(channels, width)

    def forward(self, x_BNC: Tensor, visible_BN1: Tensor | None = None) -> Tensor:
        """The token (B, D)."""
        x_BNC = self.embed(x_BNC)
        for block in self.blocks:
            x_BNC = block(x_BNC, visible_BN1)
        return self.token(self.norm(x_BNC.mean(1)))


def _product_of_patches(x_BHWC: Tensor, conv: nn.Conv2d) -> Tensor:
    """A convolution of 4 x 4 cells with one cell around the image."""
    padded = nn.functional.pad(x_BHWC, (0, 0, 1, 1, 1, 1))
    patches = padded.unfold(1, 4, 1).unfold(2, 4, 1).flatten(3)
    return nn.functional.linear(patches, conv.weight.flatten(1), conv.bias)


def _weighted(x_BHWC: Tensor, rows_IH: Tensor, columns_JW: Tensor) -> Tensor:
    """Sums along both axes, (B, C, I, J); an einsum would copy the image four times."""
    images, _, columns, channels = x_BHWC.shape
    x = torch.bmm(rows_IH.expand(images, -1, -1), x_BHWC.flatten(2))
    x = x.reshape(-1, columns, channels)
    x = torch.bmm(columns_JW.expand(x.shape[0], -1, -1), x)  # len would fix the number for export
    return x.unflatten(0, (images, -1)).permute(0, 3, 1, 2)


def axis_weights(pool: str, length: int) -> Tensor:
    """How much each of ``length`` positions counts in each of the four, (4, length).

    ``bilinear`` reads two neighbours of four points and skips all others: only for weights that
    were trained with it. A map shorter than four is interpolated in every case.
    """
    positions = torch.eye(length, device="cpu")[None, None]
    if pool in ("adaptive", "attention") and length >= _SIDE:
        return nn.functional.adaptive_avg_pool2d(positions, (_SIDE, length))[0, 0]
    return nn.functional.interpolate(
        positions, (_SIDE, length), mode="bilinear", antialias=pool == "antialias"
    )[0, 0]


def _any_visible(visible: Tensor | None, kernel: int, stride: int, padding: int) -> Tensor | None:
    if visible is None:
        return None
    pooled = nn.functional.max_pool2d(channels_first(visible), kernel, stride, padding)
    return channels_last(pooled)

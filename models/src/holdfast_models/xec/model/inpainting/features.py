"""What heads know of the surroundings of each cell: the face's values and its token, mixed.

B events, H x W = n cells, N nodes, Q sensors of the outer face, K fine cells of one of them,
T cells of a filter, C features, O of them after a filter, D width of a token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..blocks import ConvNeXtBlock, HexNeXtBlock, channels_first, channels_last
from ..faces import Faces

__all__ = ["CellPooling", "HexFeatures", "ImageFeatures", "mlp"]


class ImageFeatures(nn.Module):
    """Features of every cell of an image.

    Args:
        width: of the token, D.
    """

    channels = 64

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = self.channels
        self.token = nn.Sequential(nn.Linear(width, wide), nn.GELU())
        self.enter = nn.Conv2d(2 + wide, wide, 3, padding=1)
        self.norm = nn.GroupNorm(8, wide)
        self.blocks = nn.Sequential(ConvNeXtBlock(wide), ConvNeXtBlock(wide))

    def forward(self, x_BHWC: Tensor, token_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, H, W, C), and the token as narrow as they are (B, C)."""
        token_BC = self.token(token_BD)
        x = channels_first(self._entered(x_BHWC, token_BC))
        x = channels_last(nn.functional.gelu(self.norm(x)))
        return self.blocks(x), token_BC

    def _entered(self, x_BHWC: Tensor, token_BC: Tensor) -> Tensor:
        """``enter`` of the values and the token side by side in every cell.

        The token is the same in all of them, so that what it adds is known from the cells of the
        filter that lie on the image: a thirtieth of the arithmetic, and no image of 66 channels.
        """
        weight_OCKL, own = self.enter.weight, x_BHWC.shape[-1]
        size = x_BHWC.shape[1:3]
        patches = nn.functional.pad(x_BHWC, (0, 0, 1, 1, 1, 1)).unfold(1, 3, 1).unfold(2, 3, 1)
        x = nn.functional.linear(
            patches.flatten(3), weight_OCKL[:, :own].flatten(1), self.enter.bias
        )
        cells_1nT = nn.functional.unfold(x.new_ones(1, 1, *size), 3, padding=1).mT
        of_token_TOC = weight_OCKL[:, own:].permute(2, 3, 0, 1).flatten(0, 1)
        added_BTO = nn.functional.linear(token_BC, of_token_TOC.flatten(0, 1))
        added_BTO = added_BTO.unflatten(1, of_token_TOC.shape[:2])
        return x + torch.matmul(cells_1nT, added_BTO).unflatten(1, size)


class HexFeatures(nn.Module):
    """Features of every node of a hexagonal face; arguments as above."""

    channels = 96

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = self.channels
        self.token = nn.Sequential(nn.Linear(width, wide), nn.GELU())
        self.enter = nn.Sequential(nn.Linear(2 + wide, wide), nn.LayerNorm(wide), nn.GELU())
        self.blocks = nn.Sequential(*(HexNeXtBlock(wide) for _ in range(3)))

    def forward(self, x_BNC: Tensor, token_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Features (B, N, C), and the token as narrow as they are (B, C)."""
        token_BC = self.token(token_BD)
        there = token_BC[:, None].expand(-1, x_BNC.shape[1], -1)
        return self.blocks(self.enter(torch.cat((x_BNC, there), dim=-1))), token_BC


class CellPooling(nn.Module):
    """From the cells of the finegrid outer image to its sensors, by attention over their cells."""

    cells_QK: Tensor
    covered_QK: Tensor

    def __init__(self, faces: Faces, channels: int, *, bias: bool) -> None:
        super().__init__()
        self.score = nn.Linear(channels, 1, bias=bias)
        self.register_buffer("cells_QK", faces.outer_cells_QK.clone(), persistent=False)
        self.register_buffer("covered_QK", faces.outer_covered_QK > 0, persistent=False)

    def forward(self, x_BHWC: Tensor) -> Tensor:
        """(B, Q, C)."""
        x_BnC = x_BHWC.flatten(1, 2)
        score_BQK = self._of_sensors(self.score(x_BnC)).squeeze(-1)
        weight_BQK = score_BQK.masked_fill(~self.covered_QK, -torch.inf).softmax(-1)
        return (weight_BQK.unsqueeze(-1) * self._of_sensors(x_BnC)).sum(2)

    def _of_sensors(self, x_BnC: Tensor) -> Tensor:
        return x_BnC.index_select(1, self.cells_QK.flatten()).unflatten(1, self.cells_QK.shape)


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))

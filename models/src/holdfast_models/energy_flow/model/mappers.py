"""The mappers: from an embedding to a surface of energies, and from a surface to an embedding.

B batch, E teacher width, S cells W*H. They hold most of the parameters of a small model, and
all mixing between features happens in them: both are trained.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from .settings import LatticeSettings, MapperSettings

__all__ = ["InputMapper", "OutputMapper"]

_PLACE_STD = 0.02


class InputMapper(nn.Module):
    """Spreads an embedding over the cells of a surface.

    Args:
        width: of the embedding, E.
        lattice: whose surface.
        settings: full or low-rank form, and the dropout.
    """

    def __init__(self, width: int, lattice: LatticeSettings, settings: MapperSettings) -> None:
        super().__init__()
        self.width, self.shape = width, (lattice.height, lattice.width)
        self.spread = _map(width, lattice.cells, settings, to_surface=True)
        self.gain = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(()))
        self.place_HW = nn.Parameter(torch.randn(self.shape) * _PLACE_STD)

    def forward(self, x_BE: Tensor) -> Tensor:
        """The surface of energies ``surface_BHW``."""
        _check_width(x_BE, self.width, "an embedding", "model.width is the teacher's width")
        # An embedding has length one: its entries would drown in the biases of the first layer.
        x_BE = x_BE * math.sqrt(self.width)
        m_BHW = torch.tanh(self.spread(x_BE)).unflatten(-1, self.shape)
        return self.gain * m_BHW + self.shift + self.place_HW


class OutputMapper(nn.Module):
    """Reads an embedding from a surface; the mirror image of ``InputMapper``.

    Args:
        width: of the embedding, E.
        lattice: whose surface.
        settings: full or low-rank form, and the dropout.
    """

    def __init__(self, width: int, lattice: LatticeSettings, settings: MapperSettings) -> None:
        super().__init__()
        self.weight_S = nn.Parameter(torch.ones(lattice.cells))
        self.gather = _map(width, lattice.cells, settings, to_surface=False)
        last = self.gather.straight if isinstance(self.gather, _Skip) else self.gather[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            # What comes out at first is about as long as an embedding, not sqrt(width) as long:
            # shrinking it took the first hundreds of steps.
            last.weight.mul_(width**-0.5)
            last.bias.zero_()

    def forward(self, surface_BS: Tensor) -> Tensor:
        """The embedding ``y_BE``; not normalised."""
        cells = self.weight_S.shape[0]
        _check_width(surface_BS, cells, "a surface", "flatten it to [batch, width * height]")
        return self.gather(surface_BS * self.weight_S)


class _Skip(nn.Module):
    """A linear map, and what hidden layers add to it; they add nothing at first."""

    def __init__(self, straight: nn.Linear, deep: nn.Sequential) -> None:
        super().__init__()
        self.straight, self.deep = straight, deep
        last = deep[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, given: Tensor) -> Tensor:
        """Both together."""
        return self.straight(given) + self.deep(given)


def _map(
    width: int, cells: int, settings: MapperSettings, *, to_surface: bool
) -> nn.Sequential | _Skip:
    """The map from the embedding to the surface, or back, in the form that is set."""
    if settings.form == "deep":
        return _layers(width, cells, settings, to_surface=to_surface)
    straight = nn.Linear(width, cells) if to_surface else nn.Linear(cells, width)
    nn.init.eye_(straight.weight)
    nn.init.zeros_(straight.bias)
    if settings.form == "linear":
        return nn.Sequential(straight)
    return _Skip(straight, _layers(width, cells, settings, to_surface=to_surface))


def _layers(width: int, cells: int, settings: MapperSettings, *, to_surface: bool) -> nn.Sequential:
    """The hidden layers and the last, linear one, from the embedding to the surface or back."""
    rank = settings.rank_for(cells)
    if rank is None:
        hidden = [max(width // 2, 2 * cells), 2 * cells]
        dropout = [settings.dropout1, settings.dropout2]
    else:
        hidden, dropout = [rank], [settings.dropout1]
    widths = [width, *hidden, cells]
    if not to_surface:
        widths, dropout = widths[::-1], dropout[::-1]
    *pairs, last = pairwise(widths)
    layers: list[nn.Module] = []
    for (inputs, outputs), share in zip(pairs, dropout, strict=True):
        layers += [
            nn.Linear(inputs, outputs),
            nn.GELU(),
            nn.LayerNorm(outputs),
            nn.Dropout(share),
        ]
    return nn.Sequential(*layers, nn.Linear(*last))


def _check_width(given: Tensor, wanted: int, what: str, hint: str) -> None:
    if given.dim() != 2 or given.shape[-1] != wanted:
        raise HoldfastError(
            f"{what} of shape {list(given.shape)} is given where [batch, {wanted}] is expected; "
            f"{hint}"
        )

"""Sensors as images and back: every face's cells in one gather, predictions in another.

B events, S sensors, C channels, N cells of all faces, n cells of one face, P parts of all
faces laid end to end, Q sensors of the outer face, K fine cells of one of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..geometry import layout
from ..settings import EncoderSettings

__all__ = ["HEXAGONAL", "OUTER_SENSORS", "Faces"]

HEXAGONAL = ("top", "bottom")
OUTER_SENSORS = len(layout.sensors_of("outer"))

_SMALLEST = 3  # rows and columns of an image that stem and downsampling leave something of
_TOKENS = {
    "finegrid": ("inner", "us", "ds", "outer", "top", "bottom"),
    "split": ("inner", "outer_coarse", "outer_center", "us", "ds", "top", "bottom"),
}


class Faces(nn.Module):
    """Cuts events into the images of the faces, and puts predictions together again.

    In the fine image of the outer face a sensor covers 15 or 6 cells: each gets its share of the
    photons and the same time. Attributes:
        names: the images, in the order of the tokens.
        shapes: rows and columns of each image after pooling; (73,) of a hexagonal face.
        outer_cells_QK: the cells of the outer image that each of its sensors covers; the first
            one again where there are fewer than K.
        outer_covered_QK: 1.0 where ``outer_cells_QK`` holds a cell, 0.0 where it repeats one.
    """

    cells_N: Tensor
    share_N: Tensor
    sensors_P: Tensor
    source_S: Tensor
    outer_cells_QK: Tensor
    outer_covered_QK: Tensor

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__()
        self.names = _TOKENS[settings.outer_mode]
        self.pool = settings.outer_fine_pool if settings.outer_mode == "finegrid" else None
        tables = {name: layout.IMAGES[name]() for name in self.names}
        self._gathered = {name: table.shape for name, table in tables.items()}
        self.shapes = dict(self._gathered)
        if self.pool is not None:
            rows, columns = self._gathered["outer"]
            # As many whole windows as there are; a sensor whose last row has none has others.
            self.shapes["outer"] = (rows // self.pool[0], columns // self.pool[1])
            if min(self.shapes["outer"]) < _SMALLEST:
                raise HoldfastError(
                    f"outer_fine_pool {list(self.pool)} leaves {self.shapes['outer'][0]} x "
                    f"{self.shapes['outer'][1]} cells of the outer face; the backbone needs "
                    f"{_SMALLEST} x {_SMALLEST}: give smaller windows"
                )
        cells = np.concatenate([table.ravel() for table in tables.values()])
        self._table("cells_N", cells)
        shares = np.ones(len(cells), dtype=np.float32)
        if settings.outer_mode == "finegrid":
            first = sum(tables[name].size for name in ("inner", "us", "ds"))
            fine = tables["outer"].ravel()
            shares[first : first + fine.size] = 1.0 / layout.fine_cells()[fine]
            covered, present = _covered(self.shapes["outer"], self.pool or (1, 1))
            self._table("outer_cells_QK", covered)
            self._table("outer_covered_QK", present)
            tables["outer"] = layout.sensors_of("outer")
        self._table("share_N", shares)
        self._parts = {name: table.size for name, table in tables.items()}
        sensors = np.concatenate([table.ravel() for table in tables.values()])
        self._table("sensors_P", sensors)
        self._table("source_S", _sources(sensors))

    def forward(self, x_BSC: Tensor, valid_BSC: Tensor | None = None) -> dict[str, Tensor]:
        """Images (B, H, W, C) and hexagonal faces (B, 73, C) by name.

        Args:
            x_BSC: normalised values, with sentinels where nothing was measured.
            valid_BSC: where ``x_BSC`` holds a measured value and no sentinel; None: everywhere.
                A sentinel is not divided among fine cells, nor averaged with values.
        """
        x_BNC = x_BSC.index_select(1, self.cells_N)
        shared_BN = x_BNC[..., 0] * self.share_N
        valid_BNC = None
        if valid_BSC is not None:
            valid_BNC = valid_BSC.index_select(1, self.cells_N)
            shared_BN = torch.where(valid_BNC[..., 0], shared_BN, x_BNC[..., 0])
        x_BNC = torch.cat((shared_BN.unsqueeze(-1), x_BNC[..., 1:]), dim=-1)
        images = self._cut(x_BNC)
        if self.pool is not None:
            valid = None if valid_BNC is None else self._cut(valid_BNC)["outer"]
            images["outer"] = _pooled(images["outer"], valid, self.pool)
        return images

    def visible(self, hidden_BS: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """1 where a cell is not hidden, 0 where it is, with one channel, by the same gather.

        A pooled cell is hidden if any cell in it is.
        """
        images = self._cut((~hidden_BS).index_select(1, self.cells_N).unsqueeze(-1).to(dtype))
        if self.pool is not None:
            hidden = (1 - images["outer"]).permute(0, 3, 1, 2)
            hidden = nn.functional.max_pool2d(hidden, self.pool, self.pool)
            images["outer"] = 1 - hidden.permute(0, 2, 3, 1)
        return images

    def by_face(self, values_BS: Tensor) -> dict[str, Tensor]:
        """(B, n) of each face: its cells, or the Q sensors of the finegrid outer face."""
        parts = values_BS.index_select(1, self.sensors_P).split(list(self._parts.values()), dim=1)
        return dict(zip(self._parts, parts, strict=True))

    def to_sensors(self, parts: Mapping[str, Tensor]) -> Tensor:
        """(B, S, C) from (B, n, C) of each face, with n as in ``by_face``.

        In split mode the dense image decides for the sensors that both outer images show.
        """
        parts_BnC = torch.cat([parts[name] for name in self.names], dim=1)
        return parts_BnC.index_select(1, self.source_S)

    def outer_sensors(self, cells_BnC: Tensor, channels: Sequence[str]) -> Tensor:
        """(B, Q, C) from the cells of the finegrid outer image: photons are the sum over a
        sensor's fine cells, times their mean."""
        cells_BQKC = cells_BnC.index_select(1, self.outer_cells_QK.flatten())
        cells_BQKC = cells_BQKC.unflatten(1, self.outer_cells_QK.shape)
        covered_QK1 = self.outer_covered_QK.unsqueeze(-1)
        sums_BQC = (cells_BQKC * covered_QK1).sum(2)
        means_BQC = sums_BQC / covered_QK1.sum(1)
        columns = [
            (sums_BQC if name == "npho" else means_BQC)[..., place]
            for place, name in enumerate(channels)
        ]
        return torch.stack(columns, dim=-1)

    def _cut(self, cells_BNC: Tensor) -> dict[str, Tensor]:
        shapes = self._gathered
        sizes = [math.prod(shape) for shape in shapes.values()]
        parts = cells_BNC.split(sizes, dim=1)
        return {
            name: part.unflatten(1, shapes[name]) for name, part in zip(shapes, parts, strict=True)
        }

    def _table(self, name: str, values: np.ndarray) -> None:
        self.register_buffer(name, torch.as_tensor(values.copy()), persistent=False)


def _pooled(x_BHWC: Tensor, valid_BHWC: Tensor | None, pool: tuple[int, int]) -> Tensor:
    """Means of the valid values of each window; where there is none, of what stands for them."""

    def mean(image_BHWC: Tensor) -> Tensor:
        image_BCHW = image_BHWC.permute(0, 3, 1, 2)
        return nn.functional.avg_pool2d(image_BCHW, pool, pool).permute(0, 2, 3, 1)

    plain = mean(x_BHWC)
    if valid_BHWC is None:
        return plain
    share = mean(valid_BHWC.to(x_BHWC.dtype))
    valid = mean(torch.where(valid_BHWC, x_BHWC, 0.0))
    return torch.where(share > 0, valid / torch.where(share > 0, share, 1.0), plain)


def _covered(shape: tuple[int, ...], pool: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The cells of the (pooled) outer image that each outer sensor covers, by fine cell."""
    fine = layout.outer_fine()
    rows, columns = np.indices(fine.shape)
    rows = np.minimum(rows // pool[0], shape[0] - 1)
    columns = np.minimum(columns // pool[1], shape[1] - 1)
    pooled = (rows * shape[1] + columns).ravel()
    found = [pooled[fine.ravel() == sensor] for sensor in layout.sensors_of("outer")]
    most = max(map(len, found))
    covered = [list(cells) + [cells[0]] * (most - len(cells)) for cells in found]
    present = [[1.0] * len(cells) + [0.0] * (most - len(cells)) for cells in found]
    return np.array(covered, dtype=np.int64), np.array(present, dtype=np.float32)


def _sources(sensors: np.ndarray) -> np.ndarray:
    """Where each sensor's value is among the parts laid end to end; the last one that has it."""
    source = np.full(layout.SENSORS, -1, dtype=np.int64)
    for place, sensor in enumerate(sensors.tolist()):
        source[sensor] = place
    assert (source >= 0).all(), "an image table misses sensors"
    return source

"""Predictions as a ROOT file, written while they are made.

ROOT files are not safe to append to after a crash. So rows are gathered as the trainer gathers
predictions, in a folder of tensors (``NAME.parts``) that the same command goes on with, also after
``kill -9``; in the end they are copied into one file, piece by piece, and the folder is removed.
Memory does not grow with the rows.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import MappedTensors, TensorPredictions

from ..data.branches import import_uproot
from ..geometry.layout import SENSORS
from ..settings import NormalizationSettings
from .columns import COLUMNS, TREES, VECTORS, file_rows

_AT_ONCE = 8 << 20  # bytes of rows that are written together
_LEVEL = 1  # of zstd: five times as fast as zlib; ROOT reads it since 6.20
_NAMES = {"reg": "regressor", "mae": "mae", "inp": "inpainter", "dead": "dead channels"}


class RootPredictions(TensorPredictions):
    """A ``PredictionWriter`` for each of the three models.

    Args:
        path: the file to write.
        kind: which model, or the study of dead channels: decides the tree and its columns.
        normalization: goes into the tree ``metadata``, with the channels.
        channels: that are predicted, for autoencoder and inpainter.
        what: plain values that say what is predicted from what; unfinished predictions of
            anything else are not gone on with.
        first: the entry of the first event, where the data are not written from the beginning.
        overwrite: begin anew, whatever is there.
        compression: level of zstd; 0: none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: str,
        normalization: NormalizationSettings,
        channels: tuple[str, ...] = (),
        *,
        what: Mapping[str, Any] | None = None,
        first: int = 0,
        overwrite: bool = False,
        compression: int = _LEVEL,
    ) -> None:
        import_uproot()
        self._path, self._kind, self._level = Path(path), kind, compression
        self._normalization, self._channels = normalization, channels
        self._folder = self._path.with_name(f"{self._path.stem}.parts")
        if overwrite:
            self._path.unlink(missing_ok=True)
        elif self._path.exists():
            # Rows of a call that ended after its file was in place.
            shutil.rmtree(self._folder, ignore_errors=True)
            raise HoldfastError(f"{self._path}: is there already; write elsewhere, or --overwrite")
        decides = {"kind": kind, "first": first, **(what or {})}
        super().__init__(self._folder, decides, overwrite=overwrite)
        self._at = first + self.entries

    def append(self, predictions: Mapping[str, Tensor], entries: int) -> None:
        """Write the rows of so many events; ``file_rows`` says what is taken."""
        rows = file_rows(self._kind, predictions, self._normalization)
        if self._kind == "mae":
            rows["event_id"] = self._at + torch.arange(entries)
        elif self._kind == "inp":
            rows["event_idx"] = self._at + rows["event_idx"]
        super().append(_checked(self._kind, rows), entries)
        self._at += entries

    def close(self, *, finished: bool) -> None:
        """Make one file of the rows, or leave them for another call."""
        if finished:
            self.keep()
        super().close(finished=False)
        if finished:
            beside = self._path.with_name(f".{self._path.name}.writing")
            self._write(beside)
            os.replace(beside, self._path)
            shutil.rmtree(self._folder)

    def _write(self, path: Path) -> None:
        uproot, kept = import_uproot(), MappedTensors(self._folder, kept=True)
        empty = {name: kept.mapped(name)[:0].numpy() for name in kept.kinds}
        step = max(1, _AT_ONCE // sum(one.itemsize * _width(one) for one in empty.values()))
        metadata = {
            "kind": _NAMES[self._kind],
            **dataclasses.asdict(self._normalization),
            "predict_channels": ",".join(self._channels),
            "units": "photons, s, GeV, cm, deg; 1e10: not available",
        }
        level = uproot.ZSTD(self._level) if self._level else None
        with uproot.recreate(path, compression=level) as file:
            kinds = {
                name: "string" if isinstance(value, str) else np.dtype(np.float64)
                for name, value in metadata.items()
            }
            file.mktree("metadata", kinds).extend({n: [value] for n, value in metadata.items()})
            # A vector has to be declared with its length, or the first rows are refused.
            branches = {name: np.dtype((one.dtype, one.shape[1:])) for name, one in empty.items()}
            tree = file.mktree(TREES[self._kind], branches)
            for first in range(0, len(kept), step):
                # Mapped anew: what was read before takes no memory any more.
                rows = MappedTensors(self._folder, kept=True)
                some = slice(first, first + step)
                tree.extend({name: rows.mapped(name)[some].numpy() for name in branches})
        with path.open("rb+") as file:
            os.fsync(file.fileno())


def _checked(kind: str, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """In the order and types of the file."""
    known = COLUMNS[kind]
    strange = [name for name in columns if name not in known]
    if strange:
        raise HoldfastError(f"predictions of {kind} have no column {strange[0]}")
    rows = {name: columns[name].to(known[name]) for name in known if name in columns}
    for name, value in rows.items():
        if value.shape[1:] != ((SENSORS,) if kind == "mae" and name in VECTORS else ()):
            raise HoldfastError(f"{name} has rows of the shape {tuple(value.shape[1:])}")
    return rows


def _width(rows: np.ndarray[Any, Any]) -> int:
    return int(np.prod(rows.shape[1:]))

"""Pairs whose embeddings are there already: the layouts they come in, and what they must be.

Shapes: N pairs, E teacher width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import MappedTensors

from .dataset_files import TEXTS, WORDS, user_cache
from .tables import blocks_of
from .tensor_files import expect_shuffled_reads, read_tensors
from .text_pairs import TextFile, Texts
from .word_vectors import mapped_words

LAYOUTS = (
    ("input_embeddings", "target_embeddings"),
    ("question_embeddings", "answer_embeddings"),
    ("x", "y"),
)
"""Names of the two tensors; the last is what ``holdfast.training.write_tensors`` is given here."""

SMALLEST, LARGEST = 0.01, 100.0
"""Norms that an embedding can have."""

_UNIT = 2e-3  # rows this close to length 1 are left as they are; float16 rounds by less
_NAMED = 8  # bad rows and unknown keys named in an error


class Norms(NamedTuple):
    """The shortest and the longest row of a table."""

    least: float
    most: float

    @property
    def unit(self) -> bool:
        """Whether all rows have length 1."""
        return self.least >= 1 - _UNIT and self.most <= 1 + _UNIT


class EmbeddingFile:
    """A file or folder of embedded pairs, mapped: rows are read where they are used.

    Another process opens it again: pickled, a map would be a copy of all of the data.

    Args:
        path: see ``read_precomputed``.
        folder: where cached word vectors lie.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        self._opened = mapped_words(path, folder) if path.suffix in WORDS else path
        self._tables: tuple[Tensor, Tensor] | None = None
        self._shuffled = False
        for name, table_NE in (("inputs", self.x_NE), ("targets", self.y_NE)):
            _check_table(table_NE, f"{path}: {name}")
        if self.x_NE.shape != self.y_NE.shape:
            raise HoldfastError(
                f"{path}: inputs {list(self.x_NE.shape)} and targets {list(self.y_NE.shape)}; "
                "both need the same rows and the same width"
            )
        self.norms = check_embeddings(self.x_NE, f"{path}: inputs")
        """Of the inputs."""
        same = self.y_NE is self.x_NE
        targets = self.norms if same else check_embeddings(self.y_NE, f"{path}: targets")
        self.unit = self.norms.unit and targets.unit
        """Whether all rows have length 1 as they are."""

    @property
    def x_NE(self) -> Tensor:
        """Inputs."""
        return self._pair()[0]

    @property
    def y_NE(self) -> Tensor:
        """Targets."""
        return self._pair()[1]

    def expect_shuffled_reads(self) -> None:
        """Rows are read in no order from now on, here and wherever this is sent to."""
        self._shuffled = True
        for table_NE in self._pair():
            expect_shuffled_reads(table_NE)

    def texts(self, source: str | None = None) -> Texts:
        """The sentences that were written beside the rows; empty: there are none.

        Args:
            source: noted in the meta of each.
        """
        path = self._opened / TEXTS
        if not path.is_file():
            return ()
        found = TextFile(path, source)
        if len(found) != len(self.x_NE):
            raise HoldfastError(
                f"{path}: {len(found)} texts for {len(self.x_NE)} rows; write the set again"
            )
        return found

    def _pair(self) -> tuple[Tensor, Tensor]:
        if self._tables is None:
            path = self._opened
            self._tables = _chosen(_mapped(path) if path.is_dir() else read_tensors(path), path)
            if self._shuffled:
                self.expect_shuffled_reads()
        return self._tables

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tables": None}


def read_precomputed(
    path: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None
) -> EmbeddingFile:
    """Open embeddings of pairs and check every row.

    Args:
        path: a ``.safetensors`` or torch file that holds two tensors named as in ``LAYOUTS`` or
            one plain tensor, used as both; a ``.npy`` array, used as both; a text file of word
            vectors (``.txt``, ``.vec``); or a folder of mapped tensors.
        folder: where word vectors are kept as mapped tensors; by default the user's cache.
    """
    return EmbeddingFile(Path(path), user_cache("words") if folder is None else Path(folder))


def check_embeddings(x_NE: Tensor, where: str) -> Norms:
    """Refuse what is not a table of finite vectors of sensible length; names the rows.

    Args:
        x_NE: on the CPU.
        where: begins the error.
    """
    _check_table(x_NE, where)
    least, most, count = math.inf, 0.0, 0
    bad: list[int] = []
    first = 0
    for x_BE in blocks_of(x_NE, x_NE.shape[1]):
        norms_N = x_BE.float().norm(dim=1)
        least, most = min(least, float(norms_N.min())), max(most, float(norms_N.max()))
        fits_N = (norms_N >= SMALLEST) & (norms_N <= LARGEST)  # false for NaN too
        count += int((~fits_N).sum())
        bad += (first + (~fits_N).nonzero().flatten()[: _NAMED - len(bad)]).tolist()
        first += len(x_BE)
    if count:
        more = f" and {count - _NAMED} more" if count > _NAMED else ""
        rows = ", ".join(map(str, bad)) + more
        raise HoldfastError(
            f"{where}: {count} of {len(x_NE)} rows are not finite or have a norm outside "
            f"{SMALLEST} to {LARGEST:g}: {rows}; remove or repair them"
        )
    return Norms(least, most)


def _check_table(x_NE: Tensor, where: str) -> None:
    dense = x_NE.layout == torch.strided and x_NE.device.type == "cpu"
    if x_NE.ndim != 2 or not x_NE.is_floating_point() or not x_NE.numel() or not dense:
        raise HoldfastError(
            f"{where}: {str(x_NE.dtype).removeprefix('torch.')} of shape {list(x_NE.shape)}; "
            "embeddings are numbers with a point, one row per text"
        )


def _mapped(folder: Path) -> dict[str, Tensor]:
    found = MappedTensors(folder)
    try:
        return {key: found.mapped(key) for key in found.kinds}
    except OSError as error:
        raise HoldfastError(
            f"{error.filename or folder}: {error.strerror}; give a folder that you can read"
        ) from None


def _chosen(found: Any, path: Path) -> tuple[Tensor, Tensor]:
    if isinstance(found, Tensor):
        found = {"both": found}
    named = dict(found) if isinstance(found, Mapping) else {}
    for first, second in LAYOUTS:
        pair = named.get(first), named.get(second)
        if isinstance(pair[0], Tensor) and isinstance(pair[1], Tensor):
            return pair[0].detach(), pair[1].detach()
    tensors = [value for value in named.values() if isinstance(value, Tensor)]
    if len(named) == len(tensors) == 1:
        both_NE = tensors[0].detach()
        return both_NE, both_NE
    held = ", ".join(map(str, list(named)[:_NAMED])) or type(found).__name__
    known = " or ".join(f"{first} and {second}" for first, second in LAYOUTS)
    raise HoldfastError(f"{path}: holds {held}; it has to hold {known}, or one tensor")

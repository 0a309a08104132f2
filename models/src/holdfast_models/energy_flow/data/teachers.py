"""Frozen sentence encoders whose vectors the model learns to carry from one to another.

Shapes: N texts, E teacher width. None of them downloads anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from holdfast import HoldfastError

from .minilm import MiniLM

__all__ = ["HashTeacher", "MiniLM", "Teacher", "TeacherName", "make_teacher"]

TeacherName = Literal["hash", "minilm"]

# A pair of words is worth less than a word: a target's pairs are no sum of what its words say.
_PAIR_WEIGHT = 0.35
_WORD = re.compile(r"\w+")


class Teacher(Protocol):
    """Makes vectors of sentences, the same ones for ever."""

    @property
    def name(self) -> str:
        """One word for people and file names."""
        ...

    @property
    def dim(self) -> int:
        """E, the width of a vector."""
        ...

    @property
    def fingerprint(self) -> str:
        """Differs wherever vectors could differ: another model, other weights, another seed."""
        ...

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors of length 1 for the texts: float32 [N, E] on the CPU."""
        ...


class HashTeacher:
    """Words and pairs of neighbours, each a fixed random direction, summed and brought to length 1.

    Needs no files, and is informative: sentences that share words are close. It knows no meaning:
    "bicycle" and "wheels" are as far apart as any two words.
    """

    def __init__(self, dim: int = 384, seed: int = 0) -> None:
        if dim < 2 or seed < 0:
            raise HoldfastError(
                f"hash teacher: dim {dim}, seed {seed}; dim is at least 2 and seed at least 0"
            )
        self.dim = dim
        self.seed = seed
        self.name = f"hash{dim}"
        self.fingerprint = hashlib.sha256(
            f"holdfast hash teacher 1 dim {dim} seed {seed} pairs {_PAIR_WEIGHT}".encode()
        ).hexdigest()
        self._directions: dict[str, np.ndarray] = {}

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors of length 1 for the texts: float32 [N, E] on the CPU."""
        rows_NE = np.zeros((len(texts), self.dim), dtype=np.float64)
        for row_E, text in zip(rows_NE, texts, strict=True):
            words = _WORD.findall(text.lower()) or [""]  # an empty text has a direction too
            for word in words:
                row_E += self._direction(word)
            for first, second in pairwise(words):
                row_E += _PAIR_WEIGHT * self._direction(f"{first} {second}")
        rows_NE /= np.linalg.norm(rows_NE, axis=1, keepdims=True)
        return torch.from_numpy(rows_NE.astype(np.float32))

    def _direction(self, feature: str) -> np.ndarray:
        found = self._directions.get(feature)
        if found is None:
            found = self._directions[feature] = _gaussian(f"{self.seed} {feature}", self.dim)
        return found


def make_teacher(name: TeacherName, width: int = 384) -> Teacher:
    """The teacher of that name; ``minilm`` has one width only.

    Args:
        name: ``hash`` or ``minilm``.
        width: E.
    """
    teacher = HashTeacher(width) if name == "hash" else MiniLM()
    if teacher.dim != width:
        raise HoldfastError(
            f"teacher {name}: makes vectors of width {teacher.dim}, not {width}; "
            f"set the width to {teacher.dim}"
        )
    return teacher


def _gaussian(key: str, dim: int) -> np.ndarray:
    """Normal numbers from a text, equal on every machine and with every version of numpy."""
    digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
    # Raw words and Box-Muller: numpy fixes the raw stream for good, not its normal numbers.
    raw = np.random.Philox(key=int.from_bytes(digest[:16], "big")).random_raw((dim + 1) // 2)
    size = np.sqrt(-2.0 * np.log(((raw >> 32) + 0.5) / 2.0**32))
    angle = 2.0 * np.pi * (raw & 0xFFFFFFFF) / 2.0**32
    return np.concatenate([size * np.cos(angle), size * np.sin(angle)])[:dim]

"""The pairs a model is trained and measured on, as tensors: settings, sources, dataset.

Shapes: B batch, N pairs, E teacher width.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from holdfast import HoldfastError, Section, bounded
from holdfast.training import Gathered

from . import grammar
from .embeddings import embed
from .fields import FIELD_TASKS, SMALLEST_SIDE, make_fields, side_of
from .precomputed import check_embeddings, read_precomputed, unit_rows
from .splits import PARTS, Part, SplitKind, part_of, split_pairs, split_rows
from .teachers import Teacher, TeacherName, make_teacher
from .text_pairs import TextPair, read_pairs, read_snli

TEXTS = "texts.jsonl"
"""The sentences beside mapped embeddings, row by row."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(Section):
    """Which pairs, who embeds them, and which are held out."""

    source: Literal["grammar", "fields", "pairs", "precomputed", "snli"] = "grammar"
    path: str | None = None  # of the file, for every source but grammar and fields
    # made by grammar or fields, drawn from snli; other files are used whole
    count: int = bounded(5000, 1)
    seed: int = bounded(0, 0)  # which ones are made or drawn
    # the first two of the grammar, the others of fields
    task: Literal["rewrite", "conditional", "transport", "maps", "rounds"] = "rewrite"
    split: SplitKind = "compositional"
    teacher: TeacherName = "hash"
    width: int = bounded(384, 2)  # E
    normalise: bool = True  # embeddings of a file to length 1; teachers' have it
    cache_dir: str | None = None  # of embeddings; null: the user's cache for minilm, none for hash

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.source == "fields":
            self._check_fields()
            return
        if self.task in FIELD_TASKS:
            raise ValueError(f"task {self.task} is one of fields; source is {self.source}")
        if self.source == "grammar":
            if self.count > grammar.PREMISES:
                raise ValueError(f"count is {self.count}; the grammar makes {grammar.PREMISES}")
            return
        if self.path is None or not Path(self.path).exists():
            raise ValueError(
                f"source {self.source} reads path, which is {self.path!r}; give one that is there"
            )
        if self.task != "rewrite":
            raise ValueError(f"task {self.task} is made by the grammar; source is {self.source}")
        bare = self.source == "precomputed" and not Path(self.path).is_dir()
        if (bare or self.source == "snli") and self.split != "pair":
            raise ValueError(
                f"split {self.split} is for pairs of the grammar; with source {self.source} "
                "set split to pair"
            )

    def _check_fields(self) -> None:
        if self.task in ("rewrite", "conditional"):
            raise ValueError(
                f"task {self.task} is made by the grammar; with source fields set task to "
                f"{', '.join(FIELD_TASKS[:-1])} or {FIELD_TASKS[-1]}"
            )
        if self.split != "pair":
            raise ValueError(
                f"split {self.split} is for pairs of the grammar; with source fields set split "
                "to pair"
            )
        if side_of(self.width) is None:
            raise ValueError(
                f"width is {self.width}; fields are squares of side {SMALLEST_SIDE} or more: "
                "set width to 64 (8 x 8), 144 (12 x 12) or another square"
            )


class Pairs(Dataset[Any]):
    """Embedded pairs, stacked; a sample is (x_E, y_E, index), float32 and on the CPU.

    A batch is gathered at once, as the trainer's loaders take it.

    Args:
        x_NE: inputs, of any float type, memory-mapped or not; shared by the parts of a split.
        y_NE: targets.
        rows: which of them; all by default.
        texts: of all rows of x_NE, where they are known.
    """

    def __init__(
        self,
        x_NE: Tensor,
        y_NE: Tensor,
        rows: Sequence[int] | None = None,
        texts: Sequence[TextPair] = (),
    ) -> None:
        if x_NE.shape != y_NE.shape or (texts and len(texts) != len(x_NE)):
            raise HoldfastError(
                f"pairs: inputs {list(x_NE.shape)}, targets {list(y_NE.shape)}, {len(texts)} "
                "texts; give as many of each"
            )
        self._x_NE, self._y_NE, self._texts = x_NE, y_NE, texts
        which = range(len(x_NE)) if rows is None else rows
        self._rows_N = torch.tensor(list(which), dtype=torch.int64, device="cpu")

    @property
    def width(self) -> int:
        """E."""
        return self._x_NE.shape[1]

    @property
    def has_texts(self) -> bool:
        """Whether ``text`` can answer."""
        return bool(self._texts)

    def text(self, index: int) -> TextPair:
        """The sentences of a sample, by the index that is its third part."""
        if not self._texts:
            raise HoldfastError("pairs: these were read as embeddings and have no texts")
        return self._texts[int(self._rows_N[index])]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All inputs and all targets of this part, float32 [N, E] each, copied."""
        x_NE, y_NE, _ = self._gathered(torch.arange(len(self), device="cpu"))
        return x_NE, y_NE

    def __len__(self) -> int:
        return len(self._rows_N)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        x_BE, y_BE, _ = self._gathered(torch.tensor([index], device="cpu"))
        return x_BE[0], y_BE[0], index

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """A whole batch at once; what a ``DataLoader`` asks for."""
        index_B = torch.as_tensor(indices, dtype=torch.int64, device="cpu")
        return Gathered(self._gathered(index_B), len(index_B))

    def _gathered(self, index_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows_B = self._rows_N[index_B]
        x_BE, y_BE = (table.index_select(0, rows_B).float() for table in (self._x_NE, self._y_NE))
        return x_BE, y_BE, index_B


class PairSets(NamedTuple):
    """The three parts of the data, and who embedded them; None: they came embedded."""

    train: Pairs
    validation: Pairs
    test: Pairs
    teacher: Teacher | None


def load_pairs(settings: DataSettings) -> PairSets:
    """Read or make the pairs, embed them, and split them."""
    if settings.source == "precomputed":
        return _from_embeddings(settings)
    if settings.source == "fields":
        return _from_fields(settings)
    texts = load_texts(settings)
    parts = _checked(split_pairs(texts, settings.split), settings)
    teacher = make_teacher(settings.teacher, settings.width)
    sentences = [pair.input for pair in texts] + [pair.target for pair in texts]
    rows_NE = embed(teacher, sentences, cache_folder(settings))
    check_embeddings(rows_NE, f"teacher {teacher.name}")
    x_NE, y_NE = rows_NE.split(len(texts))
    return _sets(x_NE, y_NE, parts, texts, teacher)


def load_texts(settings: DataSettings) -> list[TextPair]:
    """The sentences of every source that has them."""
    if settings.source == "grammar":
        assert settings.task in ("rewrite", "conditional")  # the settings refuse others
        return grammar.pairs(settings.count, settings.seed, settings.task)
    if settings.path is None or settings.source == "precomputed":
        raise HoldfastError(f"data.source {settings.source}: has no texts; use grammar or pairs")
    if settings.source == "snli":
        return _drawn(read_snli(settings.path), settings.count, settings.seed)
    found = read_pairs(settings.path)
    if not found:
        raise HoldfastError(f"{settings.path}: no pairs in it; give a JSONL file that has some")
    return found


def cache_folder(settings: DataSettings) -> Path | None:
    """Where embeddings are kept; None: nowhere, the teacher is quicker than the disk."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir).expanduser()
    if settings.teacher == "hash":
        return None
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "holdfast" / "energy_flow" / "embeddings"


def _from_embeddings(settings: DataSettings) -> PairSets:
    assert settings.path is not None  # the settings refuse it
    x_NE, y_NE = read_precomputed(settings.path)
    if x_NE.shape[1] != settings.width:
        raise HoldfastError(
            f"{settings.path}: embeddings of width {x_NE.shape[1]}, data.width is "
            f"{settings.width}; set data.width={x_NE.shape[1]}"
        )
    texts = _texts_beside(Path(settings.path))
    if not texts and settings.split != "pair":
        raise HoldfastError(
            f"{settings.path}: no {TEXTS} in it, which split {settings.split} needs; "
            "set data.split=pair"
        )
    parts = split_pairs(texts, settings.split) if texts else split_rows(x_NE, y_NE)
    if settings.normalise:
        x_NE, y_NE = unit_rows(x_NE), unit_rows(y_NE)
    return _sets(x_NE, y_NE, _checked(parts, settings), texts, None)


def _from_fields(settings: DataSettings) -> PairSets:
    side = side_of(settings.width)
    assert side is not None  # the settings refuse others
    assert settings.task not in ("rewrite", "conditional")
    x_NE, y_NE = make_fields(settings.count, settings.seed, settings.task, side)
    check_embeddings(x_NE, "fields: inputs")
    check_embeddings(y_NE, "fields: targets")
    parts: dict[Part, list[int]] = {part: [] for part in PARTS}
    for number in range(settings.count):
        # Every field is drawn by itself. Not by its bytes: another machine may round otherwise.
        key = f"fields {settings.task} {settings.seed} {number}".encode()
        parts[part_of(key)].append(number)
    return _sets(x_NE, y_NE, _checked(parts, settings), (), None)


def _texts_beside(folder: Path) -> list[TextPair]:
    """The sentences of a folder of mapped tensors, where they were written too."""
    path = folder / TEXTS
    return read_pairs(path) if path.is_file() else []


def _sets(
    x_NE: Tensor,
    y_NE: Tensor,
    parts: dict[Part, list[int]],
    texts: Sequence[TextPair],
    teacher: Teacher | None,
) -> PairSets:
    train, validation, test = (Pairs(x_NE, y_NE, parts[part], texts) for part in PARTS)
    return PairSets(train, validation, test, teacher)


def _checked(parts: dict[Part, list[int]], settings: DataSettings) -> dict[Part, list[int]]:
    empty = [part for part in PARTS if not parts[part]]
    if empty:
        total = sum(map(len, parts.values()))
        raise HoldfastError(
            f"data ({settings.source}, split {settings.split}): of {total} pairs none fell into "
            f"{empty[0]}; give more pairs"
        )
    return parts


def _drawn(pairs: list[TextPair], count: int, seed: int) -> list[TextPair]:
    order = np.argsort(np.random.Philox(key=seed).random_raw(len(pairs)), kind="stable")
    return [pairs[int(number)] for number in order[:count]]

"""The pairs a model is trained and measured on, as tensors: settings, sources, dataset.

Shapes: B batch, N pairs, E teacher width.
"""

from __future__ import annotations

import dataclasses
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from holdfast import HoldfastError, Section, bounded
from holdfast.training import Gathered

from . import grammar
from .dataset_files import TEXTS, user_cache
from .embeddings import embed
from .fields import FIELD_TASKS, SMALLEST_SIDE, make_fields, side_of
from .precomputed import EmbeddingFile, check_embeddings, read_precomputed
from .splits import PARTS, Parts, SplitKind, part_of, split_pairs, split_rows
from .tables import Embedded, Tables, blocks_of
from .teachers import Teacher, TeacherName, make_teacher
from .text_pairs import JoinedTexts, TextFile, TextPair, Texts, read_snli


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings(Section):
    """Which pairs, who embeds them, and which are held out."""

    source: Literal["grammar", "fields", "pairs", "precomputed", "snli"] = "grammar"
    # of the file, for every source but grammar and fields; of several: a list, or a,b
    path: str | tuple[str, ...] | None = None
    # made by grammar or fields, drawn from all of snli; other files are used whole
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
        missing = [file for file in self.files if not os.path.exists(file)]
        if missing or not self.files:
            shown = ", ".join(map(repr, missing)) or None
            raise ValueError(
                f"source {self.source} reads path, which is {shown}; give one that is there"
            )
        if len(set(map(os.path.realpath, self.files))) < len(self.files):
            raise ValueError(f"path {self.path!r} names a file twice; name each once")
        if self.task != "rewrite":
            raise ValueError(f"task {self.task} is made by the grammar; source is {self.source}")
        bare = self.source == "precomputed" and not all(map(os.path.isdir, self.files))
        if (bare or self.source == "snli") and self.split != "pair":
            raise ValueError(
                f"split {self.split} is for pairs of the grammar; with source {self.source} "
                "set split to pair"
            )

    @property
    def files(self) -> tuple[str, ...]:
        """The files and folders of ``path``, which may have a comma in its name."""
        if not isinstance(self.path, str):
            return self.path or ()
        one = os.path.exists(self.path)
        return (self.path,) if one else tuple(filter(None, map(str.strip, self.path.split(","))))

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
        tables: inputs and targets, shared by the parts of a split.
        rows: which of them; all by default.
        texts: of all rows of the tables, where they are known.
    """

    def __init__(
        self, tables: Tables, rows: Iterable[int] | None = None, texts: Texts = ()
    ) -> None:
        if len(texts) not in (0, len(tables)):
            raise HoldfastError(
                f"pairs: {len(texts)} texts for {len(tables)} rows; give as many of each"
            )
        self.tables, self._texts = tables, texts
        which = range(len(tables)) if rows is None else rows
        self._rows_N = torch.from_numpy(np.fromiter(which, np.int64))

    @property
    def width(self) -> int:
        """E."""
        return self.tables.width

    @property
    def has_texts(self) -> bool:
        """Whether ``text`` can answer."""
        return len(self._texts) > 0

    def text(self, index: int) -> TextPair:
        """The sentences of a sample, by the index that is its third part."""
        if not self.has_texts:
            raise HoldfastError("pairs: these were read as embeddings and have no texts")
        return self._texts[int(self._rows_N[index])]

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All inputs and all targets of this part, float32 [N, E] each, copied.

        For parts that fit into memory; ``blocks`` for all others.
        """
        return self.tables.gather(self._rows_N)

    def blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and targets in order, some rows at a time."""
        return map(self.tables.gather, blocks_of(self._rows_N, self.width))

    def targets(self, every: int = 1) -> Iterator[Tensor]:
        """Targets in order, some rows at a time; those of every n-th pair only."""
        return map(self.tables.targets, blocks_of(self._rows_N[::every], self.width))

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
        return *self.tables.gather(self._rows_N[index_B]), index_B


class PairSets(NamedTuple):
    """The three parts of the data.

    Args:
        train: what is trained on.
        validation: what decides which weights are the best.
        test: what a finished run is measured on.
        teacher: who embedded them; None: they came embedded.
        sources: names and sizes of the files they were read from.
    """

    train: Pairs
    validation: Pairs
    test: Pairs
    teacher: Teacher | None
    sources: tuple[str, ...] = ()

    def expect_shuffled_reads(self) -> None:
        """All that reads the pairs in their order is done; training begins."""
        for table in self.train.tables.parts:
            if isinstance(table, EmbeddingFile):
                table.expect_shuffled_reads()


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
    tables = Tables([Embedded(*rows_NE.split(len(texts)))])
    sources = [Path(file).name for file in settings.files]
    return _sets(tables, parts, texts, teacher, sources)


def load_texts(settings: DataSettings) -> Texts:
    """The sentences of every source that has them."""
    if settings.source == "grammar":
        assert settings.task in ("rewrite", "conditional")  # the settings refuse others
        return grammar.pairs(settings.count, settings.seed, settings.task)
    if settings.source not in ("pairs", "snli"):
        raise HoldfastError(f"data.source {settings.source}: has no texts; use grammar or pairs")
    if settings.source == "snli":
        found = {pair.digest: pair for file in settings.files for pair in read_snli(file)}
        return _drawn(list(found.values()), settings.count, settings.seed)
    files = [TextFile(file, source) for file, source in _labelled(settings.files)]
    for file in files:
        if not len(file):
            raise HoldfastError(f"{file.path}: no pairs in it; give a JSONL file that has some")
    return JoinedTexts(files)


def cache_folder(settings: DataSettings) -> Path | None:
    """Where embeddings are kept; None: nowhere, the teacher is quicker than the disk."""
    if settings.cache_dir is not None:
        return Path(settings.cache_dir).expanduser()
    return None if settings.teacher == "hash" else user_cache("embeddings")


def _from_embeddings(settings: DataSettings) -> PairSets:
    cache = None if settings.cache_dir is None else Path(settings.cache_dir).expanduser()
    found = [read_precomputed(file, cache) for file in settings.files]
    for file in found:
        if file.x_NE.shape[1] != settings.width:
            raise HoldfastError(
                f"{file.path}: embeddings of width {file.x_NE.shape[1]}, data.width is "
                f"{settings.width}; set data.width={file.x_NE.shape[1]}"
                + " and leave out files of another width"
                * (len(found) > 1)
            )
    texts = _texts_of(found, settings)
    parts = split_pairs(texts, settings.split) if len(texts) else split_rows(found)
    tables = Tables(found, unit=settings.normalise and not all(file.unit for file in found))
    sources = [f"{file.path.name}: {len(file.x_NE)} pairs" for file in found]
    return _sets(tables, _checked(parts, settings), texts, None, sources)


def _from_fields(settings: DataSettings) -> PairSets:
    side = side_of(settings.width)
    assert side is not None  # the settings refuse others
    assert settings.task not in ("rewrite", "conditional")
    fields = make_fields(settings.count, settings.seed, settings.task, side)
    check_embeddings(fields.x_NE, "fields: inputs")
    check_embeddings(fields.y_NE, "fields: targets")
    parts: Parts = {part: array("q") for part in PARTS}
    for number in range(settings.count):
        # Every field is drawn by itself. Not by its bytes: another machine may round otherwise.
        key = f"fields {settings.task} {settings.seed} {number}".encode()
        parts[part_of(key)].append(number)
    return _sets(Tables([fields]), _checked(parts, settings), (), None)


def _texts_of(found: Sequence[EmbeddingFile], settings: DataSettings) -> Texts:
    """The sentences of all files, or none; some with and some without cannot be split alike."""
    names = _labelled(settings.files)
    texts = [file.texts(source) for file, (_, source) in zip(found, names, strict=True)]
    bare = [file.path for file, some in zip(found, texts, strict=True) if not len(some)]
    if bare and len(bare) < len(found):
        raise HoldfastError(
            f"{bare[0]}: has no texts, other files of data.path have; give files that all have "
            f"texts ({TEXTS} in a folder, word vectors), or none that has"
        )
    if bare and settings.split != "pair":
        raise HoldfastError(
            f"{bare[0]}: no {TEXTS} in it, which split {settings.split} needs; set data.split=pair"
        )
    return () if bare else JoinedTexts(texts)


def _labelled(files: Sequence[str]) -> list[tuple[str, str | None]]:
    """Files, each with what its pairs note as their source; one alone needs no note."""
    return [(file, Path(file).name if len(files) > 1 else None) for file in files]


def _sets(
    tables: Tables,
    parts: Parts,
    texts: Texts,
    teacher: Teacher | None,
    sources: Sequence[str] = (),
) -> PairSets:
    train, validation, test = (Pairs(tables, parts[part], texts) for part in PARTS)
    return PairSets(train, validation, test, teacher, tuple(sources))


def _checked(parts: Parts, settings: DataSettings) -> Parts:
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

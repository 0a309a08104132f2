"""Word vectors as text (GloVe, word2vec): read once, line by line, then kept as mapped tensors.

A line is a word and its numbers, separated by single spaces. A first line of two whole numbers,
which word2vec writes, is skipped. A pair is a word and itself: one table serves as inputs and as
targets, and the words are the texts.

Shapes: N words, E their width.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from holdfast import HoldfastError
from holdfast.training import TensorWriter

from .dataset_files import TEXTS, content, is_set
from .text_pairs import TextPair, write_pairs

_CHUNK = 1024  # words that are in memory together


def mapped_words(path: Path, folder: Path) -> Path:
    """The folder of mapped tensors and texts made of a file; written where it is missing.

    Args:
        path: the file of words.
        folder: of all such folders; the name of each holds the digest of its file.
    """
    try:
        made = folder / f"{path.stem}-{content(path)[:16]}"
        if is_set(made):
            return made
        part = folder / f"{made.name}.part{os.getpid()}"
        part.mkdir(parents=True, exist_ok=True)
        try:
            _write(path, part)
            _move(part, made)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        where = error.filename or path
        raise HoldfastError(
            f"{where}: {error.strerror}; give a file of words that you can read, and with "
            "data.cache_dir a folder that you can write to"
        ) from None
    return made


def _move(part: Path, made: Path) -> None:
    try:
        part.rename(made)
    except OSError:
        if not is_set(made):  # by another process, meanwhile
            raise


def _write(path: Path, folder: Path) -> None:
    def texts() -> Iterator[TextPair]:
        with TensorWriter(folder) as writer:
            lines = _lines(path)
            while chunk := list(islice(lines, _CHUNK)):
                writer.append({"x": torch.from_numpy(np.stack([row_E for _, row_E in chunk]))})
                yield from (TextPair(word, word) for word, _ in chunk)

    write_pairs(folder / TEXTS, texts())


def _lines(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Words and their rows."""
    width = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            fields = line.rstrip().rsplit(b" ", width or -1)
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue
            if not width:
                # From now on split from the right: some of GloVe's words have spaces in them.
                width = len(fields) - 1
            try:
                word = fields[0].decode()
                row_E = np.array(list(map(float, fields[1:])), dtype=np.float32)
            except ValueError:  # of numbers, or of a word that is not UTF-8
                word, row_E = "", np.empty(0)
            if not word.strip() or len(row_E) != width or width < 2:
                raise HoldfastError(
                    f"{path}:{number}: no word with {width or 'its'} numbers behind it; give text "
                    "as GloVe and word2vec write it, or remove the line"
                )
            yield word, row_E
    if not width:
        raise HoldfastError(f"{path}: no words in it; give text as GloVe and word2vec write it")

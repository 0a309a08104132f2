"""Windows of tokens with the targets one token later.

Shapes: B batch, T tokens of a window.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from holdfast import HoldfastError
from holdfast.training import Gathered

from .corpora import MOST_BYTES, Corpus, corpus, joined
from .token_files import TokenFile, split, token_files
from .tokenizers import Tokenizer, make_tokenizer


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of a token file: samples ``{"tokens": (T,), "targets": (T,)}``, int64.

    One begins ``length`` = T tokens after the other, so that each target comes once. A
    ``permutation`` gives the tokens new numbers: another vocabulary for the same text.
    """

    def __init__(
        self, file: TokenFile, length: int, *, permutation: np.ndarray | None = None
    ) -> None:
        self.file, self.length, self.permutation = file, length, permutation
        if length < 1 or len(file) <= length:
            raise HoldfastError(
                f"{file.part} has {len(file)} tokens in {file.documents} documents, a window of "
                f"{length} takes {length + 1}; give more text or windows of 1 to {len(file) - 1}"
            )

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of text that a token stands for; turns nats per token into bits per byte."""
        return self.file.text_bytes / len(self.file)

    def __len__(self) -> int:
        return (len(self.file) - 1) // self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """A whole batch at once."""
        starts_B1 = np.asarray(indices, np.int64)[:, None] * self.length
        tokens = self.file.tokens[starts_B1 + np.arange(self.length + 1)].astype(np.int64)
        if self.permutation is not None:
            tokens = self.permutation[tokens]
        tokens_BT, targets_BT = (
            torch.from_numpy(t.copy()) for t in (tokens[:, :-1], tokens[:, 1:])
        )
        return Gathered({"tokens": tokens_BT, "targets": targets_BT}, len(indices))


class TextData(NamedTuple):
    """Windows to train on and of other documents; ``corpus.found`` says what was found."""

    train: Windows
    validation: Windows
    tokenizer: Tokenizer
    corpus: Corpus


def text_data(
    sources: Sequence[str | os.PathLike[str]],
    cache: str | os.PathLike[str],
    *,
    length: int,
    tokenizer: str = "byte",
    vocabulary: int | None = None,
    most_bytes: int = MOST_BYTES,
) -> TextData:
    """Windows of corpora, files and folders (see ``corpus``), which are read as one corpus.

    The folder ``cache`` keeps token files and trained tokenizers (see ``make_tokenizer``); ``bpe``
    learns only from what is trained on.
    """
    if not sources:
        raise HoldfastError("no corpus and no file to train on; name at least one")
    found = joined([corpus(source, most_bytes=most_bytes) for source in sources])
    texts = [text for _, text in split(found.documents)[0]]
    made = make_tokenizer(tokenizer, vocabulary=vocabulary, texts=texts, cache=cache)
    train, validation = (Windows(file, length) for file in token_files(found, made, cache))
    return TextData(train, validation, made, found)

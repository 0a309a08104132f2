"""Tokens on disk: a corpus is split by document, tokenised once and mapped into memory.

A cache holds ``tokens-HASH.bin`` (uint16, or uint32 for a vocabulary over 65,536) with a JSON file
beside it that has its checksum; the hash is that of corpus, tokenizer and split.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import HoldfastError

from .cache import write_whole
from .corpora import Corpus, Document
from .tokenizers import Tokenizer

PARTS = ("train", "validation")
_VERSION = 1


@dataclass(frozen=True)
class TokenFile:
    """Tokens of one part of a corpus, mapped from a file; a worker opens it again."""

    part: str
    path: Path
    dtype: str
    first: int
    count: int
    vocabulary: int
    text_bytes: int
    documents: int

    def __len__(self) -> int:
        return self.count

    @functools.cached_property
    def tokens(self) -> np.ndarray:
        """All of them; only what is looked at comes into memory."""
        whole = np.memmap(self.path, self.dtype, "r")
        return whole[self.first : self.first + self.count]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "tokens"}


def split(documents: Sequence[Document], share: float = 0.1) -> list[list[Document]]:
    """Documents to train on and held-out ones; by their texts, so that equal ones stay together.

    At most ``share`` of all characters is held out; the smallest document if none is that small.
    """
    if not 0 < share < 1:
        raise HoldfastError(f"a validation share of {share}; give one between 0 and 1")
    keys = [hashlib.sha256(text.encode()).digest() for _, text in documents]
    sizes = dict.fromkeys(sorted(keys), 0)
    for key, (_, text) in zip(keys, documents, strict=True):
        sizes[key] += len(text)
    if len(sizes) < 2:
        raise HoldfastError(
            f"{len(documents)} documents, {len(sizes)} different: none can be held out; add text"
        )
    left, held = share * sum(sizes.values()), set[bytes]()
    for key, size in sizes.items():
        if size <= left:
            held.add(key)
            left -= size
    held = held or {min(sizes, key=lambda key: sizes[key])}
    pairs = list(zip(keys, documents, strict=True))
    return [[one for key, one in pairs if (key in held) == wanted] for wanted in (False, True)]


def token_files(
    corpus: Corpus, tokenizer: Tokenizer, cache: str | os.PathLike[str], *, share: float = 0.1
) -> tuple[TokenFile, TokenFile]:
    """What to train on and what is held out, from the cache; made where missing or damaged."""
    key = json.dumps([_VERSION, corpus.hash, tokenizer.hash, share])
    path = Path(cache) / f"tokens-{hashlib.sha256(key.encode()).hexdigest()[:16]}.bin"
    about = _known(path)
    if about is None:
        _write(path, corpus, tokenizer, share)
        about = json.loads(path.with_suffix(".json").read_bytes())
    train, held = (TokenFile(part, path, about["dtype"], **about[part]) for part in PARTS)
    return train, held


def _write(path: Path, corpus: Corpus, tokenizer: Tokenizer, share: float) -> None:
    dtype = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
    about: dict[str, Any] = {"corpus": corpus.name, "dtype": dtype.str, "crc32": 0}

    def blocks() -> Iterator[bytes]:
        first = 0
        for part, documents in zip(PARTS, split(corpus.documents, share), strict=True):
            count = 0
            for _, text in documents:
                block = np.append(tokenizer.encode(text), tokenizer.end).astype(dtype).tobytes()
                about["crc32"] = zlib.crc32(block, about["crc32"])
                count += len(block) // dtype.itemsize
                yield block
            about[part] = {
                "first": first,
                "count": count,
                "vocabulary": tokenizer.size,
                "text_bytes": sum(len(text.encode()) for _, text in documents),
                "documents": len(documents),
            }
            first += count

    write_whole(path, blocks())
    write_whole(path.with_suffix(".json"), [json.dumps(about, indent=1).encode()])


def _known(path: Path) -> dict[str, Any] | None:
    """What the cache has under this name; None where a file is missing, cut or changed."""
    try:
        about = json.loads(path.with_suffix(".json").read_bytes())
        with path.open("rb") as file:
            found = 0
            while block := file.read(1 << 20):
                found = zlib.crc32(block, found)
    except (OSError, ValueError):
        return None
    return about if isinstance(about, dict) and about.get("crc32") == found else None

"""Tokenizers that work offline: bytes, byte-level BPE trained here, and random tokens for timing.

Special tokens have the highest numbers. Text never becomes one, and they decode to nothing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import HoldfastError

from .cache import write_whole

SPECIALS = ("<end>", "<pad>")
"""The end of a document, and what fills up a batch of prompts."""
BYTES = 256
LARGEST = 1_000_000
_NAMES = "byte, bpe (trained here), random (for timing) or the path of a saved one"


class Tokenizer(ABC):
    """What all have in common; ``words`` tokens stand for text, special ones come after them."""

    name = ""

    def __init__(self, words: int) -> None:
        self.words, self.size = words, words + len(SPECIALS)
        self.specials = {special: words + n for n, special in enumerate(SPECIALS)}
        self.end = self.specials["<end>"]

    @abstractmethod
    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int64."""

    @abstractmethod
    def _text(self, tokens: list[int]) -> str: ...

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of some tokens; bytes that are no UTF-8 become the replacement character."""
        found = [int(token) for token in tokens]
        if found and not 0 <= min(found) <= max(found) < self.size:
            raise HoldfastError(
                f"tokens from {min(found)} to {max(found)} for tokenizer {self.name}, which has "
                f"{self.size}; use the tokenizer of the model"
            )
        return self._text([token for token in found if token < self.words])

    def plain(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {"tokenizer": self.name, "size": self.size}

    @functools.cached_property
    def hash(self) -> str:
        """Equal for tokenizers that give the same tokens."""
        return _hash(self.plain())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, whole or not at all."""
        write_whole(Path(path), [json.dumps(self.plain() | {"hash": self.hash}).encode()])


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: 256 tokens and the special ones, no training, no dependency."""

    name = "byte"

    def __init__(self) -> None:
        super().__init__(BYTES)

    def encode(self, text: str) -> np.ndarray:
        """One token for each byte."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def _text(self, tokens: list[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class RandomTokenizer(Tokenizer):
    """Tokens that say nothing, one for 4 characters: for timing a vocabulary of a given size."""

    name = "random"

    def __init__(self, size: int) -> None:
        _check_size(size, least=len(SPECIALS) + 1, name=self.name)
        super().__init__(size - len(SPECIALS))

    def encode(self, text: str) -> np.ndarray:
        """The same tokens for the same text."""
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        return np.random.default_rng(seed).integers(0, self.words, -(-len(text) // 4))

    def _text(self, tokens: list[int]) -> str:
        return " ".join(map(str, tokens))


class BpeTokenizer(Tokenizer):
    """Byte-level byte-pair encoding; ``content`` is a JSON text of the ``tokenizers`` package."""

    name = "bpe"

    def __init__(self, content: str) -> None:
        self._content = content
        self._bpe = _package().Tokenizer.from_str(content)
        super().__init__(self._bpe.get_vocab_size())

    @classmethod
    def train(cls, texts: Sequence[str], size: int) -> BpeTokenizer:
        """Learn merges from texts until there are ``size`` tokens, special ones included."""
        _check_size(size, least=BYTES + len(SPECIALS), name=cls.name)
        package = _package()
        bpe = package.Tokenizer(package.models.BPE())
        bpe.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=size - len(SPECIALS),
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        bpe.train_from_iterator(texts, trainer)
        made = cls(bpe.to_str())
        if made.size < size:
            raise HoldfastError(
                f"{sum(map(len, texts))} characters give a vocabulary of {made.size}, {size} were "
                f"asked for; give more text or ask for {made.size} or fewer"
            )
        return made

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text."""
        return np.array(self._bpe.encode(text, add_special_tokens=False).ids, np.int64)

    def _text(self, tokens: list[int]) -> str:
        return self._bpe.decode(tokens, skip_special_tokens=False)

    def plain(self) -> dict[str, Any]:
        """With all merges."""
        return super().plain() | {"content": self._content}


def make_tokenizer(
    name: str,
    *,
    vocabulary: int | None = None,
    texts: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
) -> Tokenizer:
    """``byte``, ``bpe``, ``random``, or one that was saved at the path ``name``.

    ``vocabulary`` counts special tokens, too. ``bpe`` learns from ``texts``, 8192 tokens unless
    given, and is kept in the folder ``cache`` by a hash of texts and size.
    """
    if name == "bpe":
        return _bpe_of(texts, 8192 if vocabulary is None else vocabulary, cache)
    if name == "random":
        return RandomTokenizer(vocabulary or 0)
    if name != "byte" and not Path(name).is_file():
        raise HoldfastError(f"tokenizer {name!r} is not on this machine; use {_NAMES}")
    made = ByteTokenizer() if name == "byte" else load_tokenizer(name)
    if vocabulary not in (None, made.size):
        raise HoldfastError(
            f"tokenizer {name} has {made.size} tokens, not {vocabulary}; leave that out, or use bpe"
        )
    return made


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """The tokenizer of a file that ``save`` wrote."""
    try:
        plain = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise HoldfastError(f"{path}: {error.strerror}; give a saved tokenizer") from None
    except ValueError:
        plain = None
    if not isinstance(plain, dict) or plain.pop("hash", None) != _hash(plain):
        raise HoldfastError(f"{path}: no saved tokenizer, or a damaged one; use {_NAMES}")
    if plain["tokenizer"] == "bpe":
        return BpeTokenizer(plain["content"])
    return RandomTokenizer(plain["size"]) if plain["tokenizer"] == "random" else ByteTokenizer()


def _bpe_of(texts: Sequence[str], size: int, cache: str | os.PathLike[str] | None) -> Tokenizer:
    if cache is None:
        return BpeTokenizer.train(texts, size)
    digest = hashlib.sha256(f"{size} {SPECIALS}".encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    path = Path(cache) / f"bpe-{digest.hexdigest()[:16]}.json"
    with contextlib.suppress(HoldfastError):  # missing or damaged: it is trained and written again
        return load_tokenizer(path)
    made = BpeTokenizer.train(texts, size)
    made.save(path)
    return made


def _hash(plain: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def _check_size(size: int, *, least: int, name: str) -> None:
    if not least <= size <= LARGEST:
        raise HoldfastError(
            f"a vocabulary of {size} for tokenizer {name}; give one from {least} to {LARGEST:,}"
        )


def _package() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError:
        raise HoldfastError(
            'tokenizer bpe: pip install "holdfast-models[liquid]" for tokenizers, or use byte'
        ) from None

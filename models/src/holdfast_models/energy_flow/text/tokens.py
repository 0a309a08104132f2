"""Words of a text as numbers: WordPiece, from a vocabulary file or built from the texts at hand.

The pieces are found as BERT's uncased tokenizer finds them (lower case, no accents, punctuation
by itself, then the longest piece that fits), so a file of its 30 522 pieces can be used as it is:

    >>> words = Vocabulary.build(["A dog runs.", "A cat sleeps."])
    >>> words.pieces("A dog sleeps!")
    ['a', 'dog', 'sleeps', '[UNK]']
    >>> ids, mask = words.encode(["A dog runs.", "A cat"])
    >>> ids.shape, words.decode(ids)
    (torch.Size([2, 6]), ['a dog runs.', 'a cat'])

The library ``tokenizers`` (0.23.3) would do for the splitting alone. Saved runs make their
vocabulary again from their texts, and its trainer makes another one: 659 pieces in place of 267 for
the default data, 32 of them with the same number. Its decoder writes ``isn ' t`` and ``well -
known``. It splits 760 characters of Unicode 14 and a capital sigma at the end of a word otherwise.

Shape suffixes: B batch, P places of a text.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from holdfast import HoldfastError

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
_SPECIAL = (PAD, UNKNOWN, BEGIN, END)
_PLACEHOLDER = "empty"  # what a text without a word is read as
_INSIDE = "##"  # starts a piece that goes on with a word
_LONGEST = 100  # characters of a word; longer ones are not words, and cost their square
_LONGEST_PART = 6  # characters of the beginnings and ends that stand for words left out
_CLOSING, _OPENING, _JOINING = ".,;:!?%)]}", "([{", "'\u2019-"


class EncodedTexts(NamedTuple):
    """Texts as numbers, filled up to the longest of them."""

    ids_BP: Tensor
    mask_BP: Tensor  # True where a piece stands


class Vocabulary:
    """The pieces a text is made of, each with its number; the number of ``[PAD]`` is 0.

    Args:
        pieces: in the order of their numbers, ``[PAD]`` first; ``[UNK]``, ``[CLS]`` (the begin)
            and ``[SEP]`` (the end) anywhere.
        source: where they come from, for errors.
    """

    def __init__(self, pieces: Sequence[str], *, source: str = "vocabulary") -> None:
        self._pieces = tuple(pieces)
        self._ids = {piece: number for number, piece in enumerate(self._pieces)}
        if self._pieces[:1] != (PAD,):
            first = repr(self._pieces[0]) if self._pieces else "nothing"
            raise HoldfastError(f"{source}: starts with {first}; the first line must be {PAD}")
        if missing := [piece for piece in _SPECIAL if piece not in self._ids]:
            raise HoldfastError(f"{source}: has no {', '.join(missing)}; add a line for each")
        if len(self._ids) < len(self._pieces):
            twice = Counter(self._pieces).most_common(1)[0][0]
            raise HoldfastError(f"{source}: {twice!r} is there twice; keep one line of it")
        self.pad, self.unknown, self.begin, self.end = (self._ids[piece] for piece in _SPECIAL)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read a file of one piece per line, such as BERT's ``vocab.txt``."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise HoldfastError(
                f"vocabulary {path} cannot be read ({error}); give a UTF-8 file, one piece per line"
            ) from None
        return cls(text.removesuffix("\n").split("\n"), source=str(path))

    @classmethod
    def build(cls, texts: Iterable[str], *, size: int = 30_522) -> Vocabulary:
        """Make the vocabulary of these texts; the same texts in any order give the same one.

        Every character is there, alone and inside a word, so that no text of these characters
        has an unknown piece; then words, frequent ones first. Where not all fit, a quarter of
        the room goes to beginnings and ends of those left out.

        Args:
            texts: what is to be read and written.
            size: the most pieces; all characters are kept even where that takes more.
        """
        counts = Counter(word for text in texts for word in _words(text))
        counts[_PLACEHOLDER] += 1
        characters = sorted({character for word in counts for character in word})
        kept = dict.fromkeys([*_SPECIAL, *characters, *(_INSIDE + one for one in characters)])
        words = [word for word in _by_count(counts) if len(word) > 1]
        room = max(0, size - len(kept))
        fitting = len(words) if len(words) <= room else room - room // 4
        kept.update(dict.fromkeys(words[:fitting]))
        parts = Counter[str]()
        for word in words[fitting:]:
            for cut in range(2, min(len(word) - 1, _LONGEST_PART) + 1):
                parts[word[:cut]] += counts[word]
                parts[_INSIDE + word[-cut:]] += counts[word]
        fresh = [part for part in _by_count(parts) if part not in kept]
        kept.update(dict.fromkeys(fresh[: room - fitting]))
        return cls(tuple(kept))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one piece per line; ``load`` reads it back."""
        Path(path).write_text("\n".join(self._pieces) + "\n", encoding="utf-8")

    def __len__(self) -> int:
        return len(self._pieces)

    @cached_property
    def fingerprint(self) -> str:
        """A digest that is another one for other pieces or another order."""
        return hashlib.sha256("\n".join(self._pieces).encode()).hexdigest()

    def pieces(self, text: str) -> list[str]:
        """The pieces of a text, without begin and end."""
        return [piece for word in _words(text) for piece in self._split(word)]

    def encode(self, texts: Sequence[str], *, length: int = 128) -> EncodedTexts:
        """Numbers and mask of texts, each with begin and end, the rest filled with 0.

        Args:
            texts: as many as there are rows.
            length: the most places of a row, begin and end included; what is over is cut off.
        """
        if length < 3:
            raise HoldfastError(f"length is {length}; a begin, a piece and an end take at least 3")
        placeholder = self.pieces(_PLACEHOLDER)
        rows = [self._marked(self.pieces(text) or placeholder, length) for text in texts]
        longest = max(map(len, rows), default=0)
        filled = [row + [self.pad] * (longest - len(row)) for row in rows]
        ids_BP = torch.tensor(filled, dtype=torch.int64, device="cpu").reshape(len(rows), longest)
        return EncodedTexts(ids_BP, ids_BP != self.pad)

    def decode(self, ids_BP: Tensor | Sequence[Sequence[int]]) -> list[str]:
        """The texts of rows of numbers, each up to its end; case and rare spacing are lost."""
        rows = ids_BP.tolist() if isinstance(ids_BP, Tensor) else ids_BP
        return [self._text(row) for row in rows]

    def row(self, text: str, length: int) -> list[int]:
        """The numbers of one text with begin and end, ``length`` at most; nothing is filled."""
        return self._marked(self.pieces(text), length)

    def _marked(self, pieces: Sequence[str], length: int) -> list[int]:
        inside = [self._ids[piece] for piece in pieces[: length - 2]]
        return [self.begin, *inside, self.end]

    def _split(self, word: str) -> list[str]:
        found: list[str] = []
        start = 0
        while start < len(word) <= _LONGEST:
            lead = _INSIDE if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if lead + word[start:end] in self._ids), None)
            if end is None:
                return [UNKNOWN]
            found.append(lead + word[start:end])
            start = end
        return found or [UNKNOWN]

    def _text(self, row: Sequence[int]) -> str:
        text = ""
        for number in row:
            if number == self.end:
                break
            if number in (self.pad, self.begin):
                continue
            piece = self._pieces[number]
            inside = piece.startswith(_INSIDE) and len(piece) > len(_INSIDE)
            text += piece.removeprefix(_INSIDE) if inside else f" {piece}"
        text = re.sub(rf" ([{re.escape(_CLOSING)}])", r"\1", text)
        text = re.sub(rf"([{re.escape(_OPENING)}]) ", r"\1", text)
        return re.sub(rf"(?<=\w) ?([{re.escape(_JOINING)}]) (?=\w)", r"\1", text).strip()


def _by_count(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda one: (-counts[one], one))


def _words(text: str) -> list[str]:
    """Lower case, no accents, split at white space, punctuation and ideographs by themselves."""
    spaced: list[str] = []
    for character in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(character)
        if character.isspace() and character not in "\x1c\x1d\x1e\x1f\x85\v\f":
            spaced.append(" ")
        elif kind == "Mn" or kind.startswith("C") or character == "�":
            continue
        elif _stands_alone(character, kind):
            spaced.append(f" {character} ")
        else:
            spaced.append(character)
    return "".join(spaced).split()


def _stands_alone(character: str, kind: str) -> bool:
    """Whether it is punctuation (all of ASCII's signs count) or an ideograph."""
    code = ord(character)
    if code < 128:
        return code >= 33 and not character.isalnum()
    return kind.startswith("P") or any(low <= code <= high for low, high in _IDEOGRAPHS)


_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)

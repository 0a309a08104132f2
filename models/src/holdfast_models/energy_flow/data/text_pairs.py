"""Pairs of sentences as text: what a pair is, and the files it is read from."""

from __future__ import annotations

import bisect
import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

from holdfast import HoldfastError

Found = TypeVar("Found")

SHORTEST = 10
"""Characters that either text of an SNLI pair has at least."""


@dataclass(frozen=True, slots=True)
class TextPair:
    """An input sentence, the sentence it is to become, and where the two come from."""

    input: str
    target: str
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def digest(self) -> bytes:
        """The content of the two texts in 16 bytes; equal for equal pairs, whatever their meta."""
        # The length keeps ("ab", "c") apart from ("a", "bc").
        text = f"{len(self.input)}:{self.input}{self.target}"
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class Texts(Protocol):
    """Pairs of sentences by number: a list of them, or a file."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> TextPair: ...
    def __iter__(self) -> Iterator[TextPair]: ...


class TextFile:
    """The pairs of a JSONL file, read where they are used: 8 bytes of memory for each.

    Args:
        path: see ``scan_pairs``; every line is checked now.
        source: noted in the meta of pairs that name none.
    """

    def __init__(self, path: str | os.PathLike[str], source: str | None = None) -> None:
        self.path, self._source = Path(path), source
        self._starts = array("q")
        for number, start, row in _rows(path):
            _or_raise(row if isinstance(row, str) else _pair(row), path, number)
            self._starts.append(start)
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int, /) -> TextPair:
        if self._map is None:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = self._starts[index]
        end = self._map.find(b"\n", start)
        row = _object(self._map[start : end if end >= 0 else None])
        pair = _or_raise(row if isinstance(row, str) else _pair(row), self.path, index + 1)
        if self._source is None or "source" in pair.meta:
            return pair
        return TextPair(pair.input, pair.target, {**pair.meta, "source": self._source})

    def __iter__(self) -> Iterator[TextPair]:
        return (self[index] for index in range(len(self)))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None}


class JoinedTexts:
    """Several sets of pairs, one after the other."""

    def __init__(self, parts: Sequence[Texts]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int, /) -> TextPair:
        which = bisect.bisect_right(self._ends, index)
        part = self._parts[which]
        return part[index - self._ends[which] + len(part)]

    def __iter__(self) -> Iterator[TextPair]:
        return chain.from_iterable(self._parts)


def read_pairs(path: str | os.PathLike[str]) -> list[TextPair]:
    """The pairs of a JSONL file as a list."""
    return [_or_raise(found, path, number) for number, found in scan_pairs(path)]


def scan_pairs(path: str | os.PathLike[str]) -> Iterator[tuple[int, TextPair | str]]:
    """Every line of a JSONL file with its number, from 1: a pair, or what is wrong with it.

    A line is ``{"input": ..., "target": ..., "meta": {...}}``; meta may be missing.
    """
    for number, _, row in _rows(path):
        yield number, row if isinstance(row, str) else _pair(row)


def write_pairs(path: str | os.PathLike[str], pairs: Iterable[TextPair]) -> int:
    """Write pairs as JSON lines, whole or not at all; returns how many."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    count = 0
    with part.open("w", encoding="utf-8") as file:
        for pair in pairs:
            row: dict[str, Any] = {"input": pair.input, "target": pair.target}
            if pair.meta:
                row["meta"] = dict(pair.meta)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return count


def read_snli(path: str | os.PathLike[str]) -> list[TextPair]:
    """Read a local JSONL copy of SNLI: premise to hypothesis, where the one follows.

    Both spellings are read: ``sentence1``/``sentence2``/``gold_label`` of the original and
    ``premise``/``hypothesis``/``label`` (0) of its copies. Texts under ten characters are left
    out, as is a pair that came before.
    """
    found: dict[bytes, TextPair] = {}
    for number, _, found_row in _rows(path):
        row = _or_raise(found_row, path, number)
        first = row.get("sentence1", row.get("premise"))
        second = row.get("sentence2", row.get("hypothesis"))
        label = row.get("gold_label", row.get("label"))
        if not isinstance(first, str) or not isinstance(second, str) or label is None:
            raise HoldfastError(
                f"{path}:{number}: no line of SNLI; it has sentence1, sentence2 and gold_label, "
                "or premise, hypothesis and label"
            )
        first, second = (" ".join(text.split()) for text in (first, second))
        if label in ("entailment", 0) and min(len(first), len(second)) >= SHORTEST:
            pair = TextPair(first, second, {"source": "snli"})
            found.setdefault(pair.digest, pair)
    if not found:
        raise HoldfastError(f"{path}: no entailment pair in it; give the training file of SNLI")
    return list(found.values())


def _or_raise(found: Found | str, path: str | os.PathLike[str], number: int) -> Found:
    if isinstance(found, str):
        raise HoldfastError(f"{path}:{number}: {found}")
    return found


def _rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, int, dict[str, Any] | str]]:
    """Number, place in the file and content of every line that is not blank."""
    start = 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, start, _object(line)
                start += len(line)
    except OSError as error:
        raise HoldfastError(f"{path}: {error.strerror}; give a JSONL file of pairs") from None


def _object(line: bytes) -> dict[str, Any] | str:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError:
        return "not UTF-8 text; give a JSONL file of pairs"
    except (ValueError, RecursionError) as error:
        return f"not JSON ({error}); remove or repair the line"
    if not isinstance(row, dict):
        return f"a {type(row).__name__}, no JSON object; remove or repair the line"
    return row


def _pair(row: Mapping[str, Any]) -> TextPair | str:
    first, second, meta = row.get("input"), row.get("target"), row.get("meta", {})
    if isinstance(first, str) and isinstance(second, str) and isinstance(meta, dict):
        if first.strip() and second.strip():
            return TextPair(first, second, meta)
        return "an empty text; remove the line, or give both input and target"
    return 'no pair; a line is {"input": "text", "target": "text"}, with "meta": {...} or not'

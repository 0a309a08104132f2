"""Pairs of sentences as text: what a pair is, and the files it is read from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

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


def read_pairs(path: str | os.PathLike[str]) -> list[TextPair]:
    """Read JSON lines ``{"input": ..., "target": ..., "meta": {...}}``; meta may be missing."""
    return [_or_raise(found, path, number) for number, found in scan_pairs(path)]


def scan_pairs(path: str | os.PathLike[str]) -> Iterator[tuple[int, TextPair | str]]:
    """Every line of such a file with its number, from 1: a pair, or what is wrong with it."""
    for number, row in _rows(path):
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
    for number, found_row in _rows(path):
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


def _rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    try:
        with Path(path).open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, _object(line)
    except OSError as error:
        raise HoldfastError(f"{path}: {error.strerror}; give a JSONL file of pairs") from None
    except UnicodeDecodeError:
        raise HoldfastError(f"{path}: not UTF-8 text; give a JSONL file of pairs") from None


def _object(line: str) -> dict[str, Any] | str:
    try:
        row = json.loads(line)
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

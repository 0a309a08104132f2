"""The sets of pairs in a folder: what counts as one, its size, age and content."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast import HoldfastError

from .tensor_files import SUFFIXES

SetKind = Literal["pairs", "embeddings", "mapped", "words"]

TEXTS = "texts.jsonl"
"""The sentences beside mapped embeddings, row by row."""

WORDS = (".txt", ".vec")
"""Text files of word vectors."""

_HEADER = "tensors.json"  # what `write_tensors` writes last


class Set(NamedTuple):
    """One set on disk."""

    path: Path
    kind: SetKind
    size: int  # bytes
    changed: float  # seconds since 1970


def find_sets(root: str | os.PathLike[str]) -> list[Set]:
    """The sets of a folder by name, but for archived ones and text files, which may be anything."""
    try:
        entries = sorted(Path(root).iterdir())
    except OSError as error:
        raise HoldfastError(f"{root}: {error.strerror}; give a folder of sets") from None
    return [set_at(path) for path in entries if is_set(path) and path.suffix not in WORDS]


def is_set(path: Path) -> bool:
    """Whether a complete set is there."""
    return _kind(path) is not None


def _kind(path: Path) -> SetKind | None:
    if path.is_dir():
        return "mapped" if (path / _HEADER).is_file() else None
    if not path.is_file():
        return None
    if path.suffix in SUFFIXES:
        return "embeddings"
    if path.suffix in WORDS:
        return "words"
    return "pairs" if path.suffix == ".jsonl" else None


def set_at(path: str | os.PathLike[str]) -> Set:
    """The set with this path."""
    path = Path(path)
    kind = _kind(path)
    if kind is None:
        known = ", ".join(sorted({".jsonl", *SUFFIXES, *WORDS}))
        raise HoldfastError(f"{path}: no set; give a {known} file or a folder of mapped tensors")
    return Set(path, kind, size_of(path), max(file.stat().st_mtime for file in _files(path)))


def _files(path: Path) -> Iterator[Path]:
    yield from (
        [path] if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())
    )


def content(path: Path) -> str:
    """A digest of all bytes of a file, or of the files of a folder."""
    digest = hashlib.sha256()
    for file in _files(path):
        with file.open("rb") as opened:
            inner = hashlib.file_digest(opened, "sha256").digest()
        digest.update(inner if path.is_file() else file.name.encode() + inner)
    return digest.hexdigest()


def size_of(path: Path) -> int:
    """Bytes of a file, or of the files of a folder."""
    return sum(file.stat().st_size for file in _files(path))


def user_cache(name: str) -> Path:
    """The folder for what can be made again."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "holdfast" / "energy_flow" / name


def shown_size(size: int) -> str:
    """Bytes for people."""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"

"""Vectors of texts, computed once: an append-only cache on disk, memory-mapped.

Shapes: N texts, E teacher width. A folder per teacher holds

* ``teacher.json``: which teacher, and E;
* ``rows.bin``: float32 rows of E numbers;
* ``texts.bin``: the 16-byte digest of the text of each row.

Rows are on disk before their digests are, so what a killed process leaves behind is never read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import channel

from .teachers import Teacher

_cache = channel("cache")
_DIGEST = 16  # bytes
_CHUNK = 1024  # texts computed between two writes: what an interruption costs at most


def embed(
    teacher: Teacher, texts: Sequence[str], folder: str | os.PathLike[str] | None = None
) -> Tensor:
    """Vectors [N, E] of texts, each different text computed once.

    Args:
        teacher: who makes them.
        texts: any, repeated or not.
        folder: of the cache on disk; None: nothing is kept.
    """
    if folder is not None:
        cache = EmbeddingCache(folder, teacher)
        rows_NE = cache.encode(texts)
        hits = len(set(texts)) - cache.computed
        _cache(
            "embedding cache %s: %d hits, %d misses; %d rows kept, never evicted",
            cache.folder, hits, cache.computed, len(cache),
        )  # fmt: skip
        return rows_NE
    row = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    if not row:
        return torch.empty(0, teacher.dim, device="cpu")
    _cache("no embedding cache: %d different ones of %d texts computed", len(row), len(texts))
    rows_UE = _computed(teacher, list(row))
    return rows_UE[[row[text] for text in texts]]


class EmbeddingCache:
    """The vectors a teacher has made so far; several processes may use one folder.

    Args:
        folder: of all caches; each teacher has one of its own in it.
        teacher: who makes what is missing.
    """

    def __init__(self, folder: str | os.PathLike[str], teacher: Teacher) -> None:
        self.teacher = teacher
        self.folder = Path(folder) / f"{teacher.name}-{teacher.fingerprint[:16]}"
        self.computed = 0
        """Texts this object had to compute."""
        self._row: dict[bytes, int] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._claim()
            self._look()

    def __len__(self) -> int:
        return len(self._row)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Vectors [N, E] of the texts, in memory; only those never seen are computed."""
        digests = [_digest(text) for text in texts]
        if any(digest not in self._row for digest in digests):
            # Locked as a whole: another process that wants the same texts waits, then reads.
            with self._locked():
                self._look()
                self._add({d: t for d, t in zip(digests, texts, strict=True) if d not in self._row})
        return self._gather([self._row[digest] for digest in digests])

    def _add(self, missing: dict[bytes, str]) -> None:
        digests, texts = list(missing), list(missing.values())
        self._cut()
        for first in range(0, len(texts), _CHUNK):
            rows_NE = _computed(self.teacher, texts[first : first + _CHUNK])
            some = digests[first : first + _CHUNK]
            held = len(self._row)
            self._append("rows.bin", rows_NE.numpy().tobytes())
            self._append("texts.bin", b"".join(some))
            self._row.update((digest, held + number) for number, digest in enumerate(some))
            self.computed += len(some)

    def _gather(self, rows: Sequence[int]) -> Tensor:
        dim = self.teacher.dim
        if not rows:
            return torch.empty(0, dim, device="cpu")
        shape = (len(self._row), dim)
        mapped = np.memmap(self.folder / "rows.bin", dtype="<f4", mode="r", shape=shape)
        return torch.from_numpy(np.asarray(mapped[np.asarray(rows)]))

    @property
    def _row_bytes(self) -> int:
        return 4 * self.teacher.dim

    def _look(self) -> None:
        """Learn what other processes have added."""
        sizes = [self._size("texts.bin") // _DIGEST, self._size("rows.bin") // self._row_bytes]
        count, known = min(sizes), len(self._row)
        if count <= known:
            return
        with (self.folder / "texts.bin").open("rb") as file:
            file.seek(known * _DIGEST)
            raw = file.read((count - known) * _DIGEST)
        for number in range(count - known):
            digest = raw[number * _DIGEST : (number + 1) * _DIGEST]
            self._row[digest] = known + number
        if len(self._row) != count:
            raise HoldfastError(
                f"{self.folder}: {count} rows for {len(self._row)} texts, so it is damaged; "
                "remove the folder, it is computed again"
            )

    def _size(self, name: str) -> int:
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def _cut(self) -> None:
        """Remove what a killed process left behind the valid rows.

        Digests go first: one of an older time must not meet a row that is written now.
        """
        for name, entry in (("texts.bin", _DIGEST), ("rows.bin", self._row_bytes)):
            if self._size(name) > len(self._row) * entry:
                with (self.folder / name).open("r+b") as file:
                    file.truncate(len(self._row) * entry)
                    os.fsync(file.fileno())

    def _append(self, name: str, raw: bytes) -> None:
        with (self.folder / name).open("ab") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())

    def _claim(self) -> None:
        path = self.folder / "teacher.json"
        own = {"fingerprint": self.teacher.fingerprint, "dim": self.teacher.dim}
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_text(json.dumps({**own, "name": self.teacher.name}), encoding="utf-8")
            part.replace(path)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            same = {key: found[key] for key in own} == own
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            raise HoldfastError(
                f"{path}: of another teacher than {self.teacher.name} of width "
                f"{self.teacher.dim}; remove the folder, it is computed again"
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # given up when the file is closed
            yield


def _computed(teacher: Teacher, texts: Sequence[str]) -> Tensor:
    rows_NE = teacher.encode(texts)
    wanted = (len(texts), teacher.dim)
    if tuple(rows_NE.shape) != wanted or not bool(rows_NE.isfinite().all()):
        raise HoldfastError(
            f"teacher {teacher.name}: made {list(rows_NE.shape)} for {len(texts)} texts, or "
            f"numbers that are not finite; it has to make finite rows of shape {list(wanted)}"
        )
    return rows_NE.to("cpu", torch.float32).contiguous()


def _digest(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=_DIGEST).digest()

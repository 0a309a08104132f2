"""Predictions as a ROOT file, written while they are made.

Columns only, so memory does not grow with the rows. ROOT files are not safe to append to after a
crash, so everything up to a ``keep`` lies in a closed part (``NAME.part3.root``), and a small
``NAME.parts.json`` says what is safe. The same command goes on behind it, also after ``kill -9``;
in the end the parts are copied into one file, piece by piece, and removed.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from holdfast import HoldfastError

from ..data.branches import import_uproot
from ..geometry.layout import SENSORS
from ..settings import NormalizationSettings
from .columns import COLUMNS, TREES, file_rows

Kind = Literal["reg", "mae", "inp", "dead"]
Columns = dict[str, np.ndarray[Any, Any]]

_AT_ONCE = 8 << 20  # bytes of rows that are written together
_LEVEL = 1  # of zstd: five times as fast as zlib; ROOT reads it since 6.20


class RootPredictions:
    """A ``PredictionWriter`` for each of the three models.

    Args:
        path: the file to write.
        kind: which model, or the study of dead channels: decides the tree and its columns.
        normalization: goes into the tree ``metadata``, with the channels.
        channels: that are predicted, for autoencoder and inpainter.
        what: plain values that say what is predicted from what; unfinished predictions of
            anything else are not gone on with.
        first: the entry of the first event, where the data are not written from the beginning.
        max_events: only so many events are written.
        overwrite: begin anew, whatever is there.
        compression: level of zstd; 0: none.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: Kind,
        normalization: NormalizationSettings,
        channels: tuple[str, ...] = (),
        *,
        what: Mapping[str, Any] | None = None,
        first: int = 0,
        max_events: int | None = None,
        overwrite: bool = False,
        compression: int = _LEVEL,
    ) -> None:
        import_uproot()
        self._path = Path(path)
        self._kind: Kind = kind
        self._normalization = normalization
        self._note = self._path.with_name(f"{self._path.stem}.parts.json")
        self._metadata = _metadata(kind, normalization, channels)
        self._first, self._most, self._level = first, max_events, compression
        self._open: _Tree | None = None
        self._saved: dict[str, Any] = {
            "what": json.loads(json.dumps({"kind": kind, "first": first, **dict(what or {})})),
            "entries": 0,
            "parts": 0,
            "types": {},
        }
        self._begin(overwrite=overwrite)
        self.entries = self._seen = int(self._saved["entries"])

    def append(self, predictions: Mapping[str, Tensor], entries: int) -> None:
        """Write the rows of so many events; ``file_rows`` says what is taken."""
        rows = file_rows(self._kind, predictions, self._normalization)
        columns = {name: value.numpy() for name, value in rows.items()}
        offset = self._first + self._seen
        if self._kind == "mae":
            columns["event_id"] = offset + np.arange(entries)
        elif self._kind == "inp":
            columns["event_idx"] = offset + columns["event_idx"]
        if self._most is not None:
            left = max(self._most - self._seen, 0)
            columns = _first_events(columns, self._kind, offset + left, left)
        self._seen += entries
        checked = _checked(self._kind, columns)
        if self._open is None:
            self._open = self._tree(self._part(self._saved["parts"]), self._types(checked))
        self._open.append(checked)

    def keep(self) -> None:
        """Close the part that was written: what was appended is safe."""
        if self._open is not None:
            self._open.close()
            self._open = None
            self._saved["parts"] += 1
        self._saved["entries"] = self.entries = self._seen
        _write_whole(self._note, json.dumps(self._saved))

    def close(self, *, finished: bool) -> None:
        """Make one file of the parts, or leave them for another call."""
        if finished:
            self.keep()
            self._join()
        elif self._open is not None:
            # What no keep made safe is predicted again.
            self._open.abandon()
            self._open = None

    def _begin(self, *, overwrite: bool) -> None:
        """Find out what is there."""
        note = self._note
        if overwrite:
            self._path.unlink(missing_ok=True)
            self._tidy()
        if self._path.exists():
            self._tidy()  # of a call that ended after its last file was in place
            raise HoldfastError(f"{self._path}: is there already; write elsewhere, or --overwrite")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if not note.exists():
            return
        try:
            saved = json.loads(note.read_text(encoding="utf-8"))
            before = dict(saved["what"])
        except (ValueError, KeyError, TypeError):
            raise HoldfastError(f"{note}: is damaged; --overwrite begins anew") from None
        now = self._saved["what"]
        changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        if changed:
            raise HoldfastError(
                f"{note}: was begun with another {', '.join(changed)}; write elsewhere, or "
                "--overwrite"
            )
        self._saved = saved

    def _types(self, rows: Columns) -> dict[str, list[Any]]:
        """The columns of the file, which the first rows decide."""
        types = {name: [value.dtype.str, list(value.shape[1:])] for name, value in rows.items()}
        known = self._saved["types"]
        if known and known != types:
            lost = sorted({*known} ^ {*types}) or sorted(types)
            raise HoldfastError(f"{self._path}: rows with other columns than before: {lost}")
        self._saved["types"] = types
        return types

    def _tree(self, path: Path, types: Mapping[str, list[Any]]) -> _Tree:
        return _Tree(path, TREES[self._kind], types, self._metadata, self._level)

    def _part(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.stem}.part{number}.root")

    def _join(self) -> None:
        parts = [self._part(number) for number in range(self._saved["parts"])]
        if len(parts) == 1:
            os.replace(parts[0], self._path)
        else:
            whole = self._path.with_name(f"{self._path.stem}.joining.root")
            tree = self._tree(whole, self._saved["types"])
            try:
                for part in parts:
                    for rows in _pieces(part, TREES[self._kind]):
                        tree.append(rows)
                tree.close()
            except BaseException:
                tree.abandon()
                raise
            os.replace(whole, self._path)
        self._tidy()

    def _tidy(self) -> None:
        """Remove what is not the file itself; the note last, which names the parts."""
        for part in self._path.parent.glob(f"{self._path.stem}.part*.root"):
            part.unlink()
        self._path.with_name(f"{self._path.stem}.joining.root").unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


class _Tree:
    """One file with rows and metadata; rows are gathered until writing them is worth it."""

    def __init__(
        self,
        path: Path,
        name: str,
        types: Mapping[str, list[Any]],
        metadata: Mapping[str, Any],
        level: int,
    ) -> None:
        self._path = path
        root = import_uproot()
        self._file = root.recreate(path, compression=root.ZSTD(level) if level else None)
        meta = {name: _type_of(value) for name, value in metadata.items()}
        self._file.mktree("metadata", meta).extend(
            {name: [value] if isinstance(value, str) else np.array([value], meta[name])
             for name, value in metadata.items()}
        )  # fmt: skip
        # A vector has to be declared with its length, or the first rows are refused.
        branches = {
            name: np.dtype((dtype, tuple(shape))) if shape else np.dtype(dtype)
            for name, (dtype, shape) in types.items()
        }
        self._tree = self._file.mktree(name, branches) if branches else None
        self._waiting: list[Columns] = []
        self._bytes = 0

    def append(self, rows: Columns) -> None:
        self._waiting.append(rows)
        self._bytes += sum(column.nbytes for column in rows.values())
        if self._bytes >= _AT_ONCE:
            self._flush()

    def close(self) -> None:
        """Complete and on the disk."""
        try:
            self._flush()
        finally:
            self._file.close()
        with self._path.open("rb+") as file:
            os.fsync(file.fileno())

    def abandon(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if self._tree is None or not any(len(next(iter(rows.values()))) for rows in waiting):
            return
        self._tree.extend({n: np.concatenate([rows[n] for rows in waiting]) for n in waiting[0]})


def _checked(kind: Kind, columns: Mapping[str, np.ndarray[Any, Any]]) -> Columns:
    """In the order and types of the file, all of one length."""
    known = COLUMNS[kind]
    strange = [name for name in columns if name not in known]
    if strange:
        raise HoldfastError(f"predictions of {kind} have no column {strange[0]}")
    rows = {name: columns[name] for name in known if name in columns}
    lengths = {name: len(value) for name, value in rows.items()}
    if len(set(lengths.values())) > 1:
        raise HoldfastError(f"columns of different lengths: {lengths}")
    for name, value in rows.items():
        dtype, vector = known[name]
        if value.shape[1:] != ((SENSORS,) if vector else ()):
            raise HoldfastError(f"{name} has rows of the shape {value.shape[1:]}")
        rows[name] = np.ascontiguousarray(value, dtype=dtype)
    return rows


def _first_events(columns: Columns, kind: Kind, end: int, left: int) -> Columns:
    """Without the rows of events beyond a number of them."""
    rows = int(np.searchsorted(columns["event_idx"], end)) if kind == "inp" else left
    return {name: value[:rows] for name, value in columns.items()}


def _pieces(path: Path, tree: str) -> Iterator[Columns]:
    """The rows of a part, a few at a time; nothing of it stays in a cache."""
    with import_uproot().open(path, array_cache=None, object_cache=None) as file:
        for rows in file[tree].iterate(step_size=f"{_AT_ONCE} B", library="np"):
            yield dict(rows)


def _metadata(
    kind: Kind, normalization: NormalizationSettings, channels: tuple[str, ...]
) -> dict[str, Any]:
    names = {"reg": "regressor", "mae": "mae", "inp": "inpainter", "dead": "dead channels"}
    return {
        "kind": names[kind],
        **dataclasses.asdict(normalization),
        "predict_channels": ",".join(channels),
        "units": "photons, s, GeV, cm, deg; 1e10: not available",
    }


def _type_of(value: Any) -> Any:
    return "string" if isinstance(value, str) else np.dtype(np.float64)


def _write_whole(path: Path, text: str) -> None:
    """There or not, never half of it."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)

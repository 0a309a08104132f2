"""Saving and loading one checkpoint: atomic, hashed while it passes, never unpickled.

A save writes both files under temporary names, waits for the disk, and renames them, the record
last. Killed at any instant it leaves the older checkpoint of that name, or the new one.

    >>> import tempfile
    >>> from holdfast.checkpoint.tree import flatten
    >>> path = Path(tempfile.mkdtemp(), file_name(step=7))
    >>> written = save(path, *flatten({"w": torch.ones(2)}), {"step": 7, "metrics": {"loss": 0.5}})
    >>> tree, record = load(written.path)
    >>> tree, record["step"]
    ({'w': tensor([1., 1.])}, 7)
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import holdfast
from holdfast.checkpoint import stream
from holdfast.checkpoint.record import (
    DATA,
    FORMAT,
    SECOND,
    WrittenCheckpoint,
    check_digest,
    check_size,
    damaged,
    data_path,
    encode_record,
    file_name,
    or_damaged,
    read_record,
    record_path,
    unreadable,
    verify,
)
from holdfast.checkpoint.tree import form, paths
from holdfast.errors import CheckpointError
from holdfast.regular_files import open_regular
from holdfast.run.durable import TEMPORARY, opener, replace_file, sync_folder

__all__ = ["WrittenCheckpoint", "file_name", "load", "save", "verify"]


# Two writers of one process (a watch in a script under `holdfast run`) may save the same step.
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()  # a forked child may have got it in the locked state


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def save(
    path: str | os.PathLike[str],
    skeleton: Any,
    tensors: Sequence[Tensor],
    meta: Mapping[str, Any],
    *,
    compress: bool = False,
) -> WrittenCheckpoint:
    """Write a state and its record; when this returns, the disk has both.

    ``meta`` has ``step`` and may have ``rank``, ``world``, ``kind``, ``metrics``, ``good`` and
    anything else that JSON can hold. A failure is a ``CheckpointError`` that leaves an older
    checkpoint of this name as it was.
    """
    began = time.perf_counter()
    record = record_path(Path(path))
    with _lock:
        size, fields = _save(record.with_suffix(DATA), record, skeleton, tensors, meta, compress)
    return WrittenCheckpoint(record.with_suffix(DATA), size, time.perf_counter() - began, fields)


def load(
    path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> tuple[Any, dict[str, Any]]:
    """Read a checkpoint, given by either of its files: the tree, and the fields of its record.

    A checkpoint over ranks comes whole, with the RNG state of rank 0; ``sharded.loading`` reads
    what one rank needs. Nothing is given back unless all files are what was written, bit for
    bit; the error is then a ``DamagedCheckpointError``.
    """
    path = Path(path)
    fields = read_record(path)
    data = data_path(record_path(path), fields)
    check_size(data, fields)
    if "files" in fields:
        # Not before it is needed: the planners behind it take a while to import.
        from holdfast.checkpoint.sharded.loading import load_folder

        with or_damaged(data):
            return load_folder(data, device=device)
    try:
        with open_regular(data) as file:
            content = stream.read(file, fields["bytes"])
    except OSError as error:
        raise unreadable(data, error) from error
    except ValueError as error:
        raise damaged(data, str(error)) from error
    check_digest(data, fields, content.sha256)
    with or_damaged(data):
        return content.tree(device), fields


def _save(
    path: Path,
    record: Path,
    skeleton: Any,
    tensors: Sequence[Tensor],
    meta: Mapping[str, Any],
    compress: bool,
) -> tuple[int, dict[str, Any]]:
    place = _free_name(path, record)
    temps = [one.with_name(f"{one.name}.{os.getpid()}{TEMPORARY}") for one in (place, record)]
    try:
        with open(temps[0], "w+b", buffering=0, opener=opener) as file:
            sha256 = stream.write(file, skeleton, tensors, compress=compress)
            os.fsync(file.fileno())
            size = file.tell()
        fields: dict[str, Any] = {
            "format": FORMAT, "step": int(meta["step"]), "time": time.time(), "rank": 0, "world": 1,
            "kind": "asked", "good": True, "metrics": {}, **meta,
            "file": place.name, "sha256": sha256, "bytes": size,
            "holdfast": holdfast.__version__, "torch": str(torch.__version__),
            "tensors": _forms(skeleton, tensors),
        }  # fmt: skip
        _put_file(temps[1], _encoded(fields))
        _rename(temps[0], place)
        _rename(temps[1], record)
        if place != path:
            _settle(place, path, record, fields)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {path.name}: {error.strerror or error}, in {path.parent}; free some "
            "space or choose another folder with --set checkpoint.dir=DIR"
        ) from error
    finally:
        for temp in temps:
            with contextlib.suppress(OSError):
                temp.unlink()
    return size, fields


def _free_name(path: Path, record: Path) -> Path:
    """Where the new data goes first: a file in use must stay whole until the record changes."""
    with contextlib.suppress(CheckpointError):
        if data_path(record, read_record(record)) == path:
            return path.with_name(f"{path.stem}{SECOND}{DATA}")
    return path


def _settle(place: Path, path: Path, record: Path, fields: dict[str, Any]) -> None:
    """Give a saved file the name of the older one; without it all the same, it is found."""
    with contextlib.suppress(OSError):
        _rename(place, path)
        fields["file"] = path.name
        replace_file(record, _encoded(fields))


def _put_file(path: Path, data: bytes) -> None:
    with open(path, "wb", opener=opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename(path: Path, name: Path) -> None:
    os.replace(path, name)
    sync_folder(name.parent)


def _forms(skeleton: Any, tensors: Sequence[Tensor]) -> dict[str, Any]:
    return dict(zip(paths(skeleton), map(form, tensors), strict=True))


def _encoded(fields: Mapping[str, Any]) -> bytes:
    try:
        return encode_record(fields)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"the record cannot be written as JSON ({error}), in the meta data of step "
            f"{fields['step']}; give numbers, text, lists and dicts"
        ) from error

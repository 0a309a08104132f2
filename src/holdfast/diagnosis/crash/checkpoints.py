"""A checkpoint of the script's own that cannot be read, and the newest beside it that can; a state
that does not fit its model, and the sizes of both."""

from __future__ import annotations

import itertools
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...records.crash import RaisedException
from .traceback_frames import TracebackEntry
from .values import is_tensor

# Files of a folder that are tried, the newest first.
_TRIED = 32
# Up to this size every byte is checked, above it that the file has its end.
_CHECKED = 256 << 20
# Tensors of a state that are compared with those of the model.
_NAMES = 400


def facts(calls: Sequence[TracebackEntry]) -> RaisedException:
    """The file that ``torch.load`` was reading, and one to go on with; a state and its model."""
    for call in reversed(calls):
        if call.function == "load_state_dict" and "state_dict" in call.frame.f_locals:
            held = call.frame.f_locals
            return RaisedException(
                saved_sizes=_sizes(held["state_dict"]),
                model_sizes=_sizes(held["self"].state_dict()),
            )
        if call.function == "load" and Path(call.file).name == "serialization.py":
            path = _path(call.frame.f_locals.get("f"))
            if path is not None and path.is_file():
                return RaisedException(checkpoint=str(path), readable=newest_readable(path))
    return RaisedException()


def _sizes(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a state by their names."""
    found = ((name, value) for name, value in state.items() if is_tensor(value))
    return {
        name: tuple(int(size) for size in value.shape)
        for name, value in itertools.islice(found, _NAMES)
    }


def newest_readable(damaged: Path) -> str:
    """The newest other file of the folder with the same ending that is whole; empty for none."""
    found: list[tuple[float, Path]] = []
    with os.scandir(damaged.parent or Path()) as entries:
        for entry in entries:
            if entry.name.endswith(damaged.suffix) and entry.name != damaged.name:
                found.append((entry.stat().st_mtime, Path(entry.path)))
    others = [path for _, path in sorted(found, reverse=True)[:_TRIED]]
    return next((str(path) for path in others if _whole(path)), "")


def _path(given: Any) -> Path | None:
    if not isinstance(given, str | os.PathLike):
        given = getattr(given, "name", None)  # an open file
    return Path(given) if isinstance(given, str | os.PathLike) else None


def _whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return path.stat().st_size > _CHECKED or archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False

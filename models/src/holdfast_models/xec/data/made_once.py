"""Folders that are made once and found again: by the next run, and by the other ranks of this one.

The name of a folder is a hash of everything that decides what is in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast import HoldfastError


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """This folder; where it is not there, ``make`` fills one that then takes its name.

    A folder that was cut short never has the name. Of several processes one makes it while the
    others wait.
    """
    if folder.exists():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        raise HoldfastError(
            f"{folder.parent}: {error.strerror}; choose a folder that you can write to"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return folder
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        make(part)
        part.replace(folder)
    return folder


def name_of(what: str, *decides: Any) -> str:
    """A name of what is decided by these plain values."""
    reported = json.dumps(decides, sort_keys=True, default=str)
    return f"{what}-{hashlib.sha256(reported.encode()).hexdigest()[:16]}"


def stamps(files: Iterable[str | os.PathLike[str]]) -> list[tuple[str, int, int]]:
    """Which files, as they are now: one that is written again has another stamp."""
    found = [(Path(file).resolve(), Path(file).stat()) for file in files]
    return [(str(path), known.st_size, known.st_mtime_ns) for path, known in found]

"""A run that begins anew, over logs that the one before it has appended to.

What that one appended comes again: it is cut off, where its record proves what the file was before,
and kept in its folder. Anything else is left as it is and named.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..regular_files import open_regular
from ..run import LaneReader, Run
from ..run.appended import KEPT, OUTPUT, foot

_AFTERWARDS = 10.0
"""Seconds by which the last row may be younger than the last sign of the run that was killed."""


def cut_back(run: Run, say: Callable[[str], object]) -> None:
    """Make the files that a killed run has appended to what they were before it."""
    first: dict[str, Mapping[str, Any]] = {}
    for lane in run.lanes():
        for event in LaneReader(run, lane).events():
            if event.kind == OUTPUT and event.data.get("appends"):
                first.setdefault(str(event.data.get("file")), event.data)
    for path, told in first.items():
        try:
            size, now = int(told["bytes"]), os.lstat(path)
            if now.st_size <= size and not told.get("made"):
                continue
            why = _not_ours(path, now, told, run)
            if why:
                say(f"holdfast: {path} has rows of {run.path}, which come again ({why})")
                continue
            kept = _cut(Path(path), size, run, made=bool(told.get("made")))
        except FileNotFoundError:
            continue
        except (OSError, KeyError, TypeError, ValueError) as error:
            say(f"holdfast: {path} may have rows of {run.path}, which come again ({error})")
            continue
        say(f"holdfast: {path} is again what it was before {run.path}; the rest is in {kept}")


def _not_ours(path: str, now: os.stat_result, told: Mapping[str, Any], run: Run) -> str:
    """Why it is not certain that all behind the place was written by the run; empty if it is."""
    if not stat.S_ISREG(now.st_mode) or now.st_nlink > 1:
        return "it is a link"
    if list(told.get("inode", ())) != [now.st_dev, now.st_ino]:
        return "it is another file than the run has opened"
    if now.st_size < int(told["bytes"]) or foot(path, int(told["bytes"])) != told.get("foot"):
        return "what stood there before the run has changed"
    if _died(run) + _AFTERWARDS < now.st_mtime:
        return "something was written to it after the run"
    return ""


def _died(run: Run) -> float:
    """The last sign of a run: the youngest file of its record."""
    return max(one.stat().st_mtime for one in run.path.iterdir() if one.is_file())


def _cut(path: Path, size: int, run: Run, *, made: bool) -> Path:
    folder = run.path / KEPT
    if folder.is_symlink():
        raise OSError(f"{folder} is a link")
    folder.mkdir(exist_ok=True)
    kept = folder / path.name
    number = 1
    while kept.exists() or kept.is_symlink():
        kept, number = folder / f"{path.stem}.{number}{path.suffix}", number + 1
    if made:
        shutil.move(path, kept)
        return kept
    with open_regular(path) as source, open(kept, "xb") as target:
        source.seek(size)
        shutil.copyfileobj(source, target)
    os.truncate(path, size)
    return kept

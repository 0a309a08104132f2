"""Runs by name: a path, ``last``, the name of a run, or as much of it as tells it from others."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from pathlib import Path

from holdfast.errors import RunFolderError
from holdfast.run.folder import META, Run

ROOT = "runs"
"""Where runs lie unless the settings say otherwise."""

NEWEST = ("last", "latest")
"""Words for the newest run."""

# Names that an error message lists.
_SHOWN = 6


def find_run(word: str | None, root: str | os.PathLike[str]) -> Run:
    """The run that ``word`` means; the newest one under ``root`` when it is None."""
    return Run.latest(root) if word is None else Run.open(run_path(word, root))


def run_path(word: str, root: str | os.PathLike[str] = ROOT) -> Path:
    """The path that a user means by ``word``, wherever a run is asked for.

    A path that exists is taken as it is. Otherwise ``last`` is the newest run under ``root``, and
    anything else the name of a run there or the beginning of one name alone. ``runs/2026-11``
    and ``scan/lr=1`` (folders that hold runs) work as well.

    >>> import tempfile
    >>> root = tempfile.mkdtemp()
    >>> run = Run.create(f"{root}/2026-11-15-1204-train", {})
    >>> run_path("last", root) == run_path("2026-11-15", root) == run.path
    True
    """
    given = Path(word)
    if os.path.lexists(given):
        return given
    if word in NEWEST:
        return Run.latest(root).path
    if os.path.lexists(Path(root) / given):
        return Path(root) / given
    # Of runs/2026-11 the folder is runs; of scan/lr=1 it is scan, under the root.
    folder = given.parent if given.is_absolute() or given.parent.parts else Path(root)
    if not given.is_absolute() and given.parent.parts and not given.parent.is_dir():
        folder = Path(root) / given.parent
    known = {path.name: path for path in run_folders(folder)}
    found = [name for name in known if given.name and name.startswith(given.name)]
    if len(found) == 1:
        return known[found[0]]
    if found:
        raise RunFolderError(
            f"{word!r} is the beginning of {len(found)} runs in {folder}: {_listed(found)}; "
            "write more of the name"
        )
    near = difflib.get_close_matches(given.name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else "give the folder that holds run.json;"
    raise RunFolderError(
        f"{word} does not exist, and no run in {folder} has a name that begins so; {hint} "
        "list them: holdfast runs"
    )


def run_folders(root: str | os.PathLike[str]) -> Iterator[Path]:
    """The run folders directly under ``root``, by name, damaged ones too."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise RunFolderError(
            f"cannot list {root}: {error.strerror}; check the permissions of this folder"
        ) from error
    for name in names:
        path = Path(root) / name
        if os.path.lexists(path / META):
            yield path


def _listed(names: list[str]) -> str:
    more = [f"{len(names) - _SHOWN} more"] if len(names) > _SHOWN else []
    shown = [*names[:_SHOWN], *more]
    return " and ".join([", ".join(shown[:-1]), shown[-1]])

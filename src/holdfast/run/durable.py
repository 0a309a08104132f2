"""Writing files so that a kill or a full disk leaves them whole.

``replace_file`` swaps a file's content in one step; ``Appender`` adds to a file all or
nothing. Everything the run package writes, except the ring, goes through these two.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from holdfast.regular_files import NO_LINK, descriptor

TEMPORARY = ".tmp"
"""How the name of a half-written file ends; such a file is never read."""

SHARED = "run.json"
"""The file whose permissions those of all others of a run follow."""
_READ_BY_OTHERS = 0o044
_shared = False

BINARY: int = getattr(os, "O_BINARY", 0)
"""Windows would translate line ends without it; nothing elsewhere."""


def share(shared: bool) -> None:
    """Say whether what this process makes may be read by others, as its umask says."""
    global _shared
    _shared = shared


def mode_in(folder: Path) -> int:
    """The permissions of a new file: for its owner only, but in a run that others may read."""
    if _shared:
        return 0o666
    run = folder.parent if folder.name.startswith("step-") else folder
    run = run.parent if run.name == "checkpoints" else run
    try:
        return 0o666 if os.stat(run / SHARED).st_mode & _READ_BY_OTHERS else 0o600
    except OSError:
        return 0o600


def make_folder(path: Path, *, exist_ok: bool = True) -> None:
    """Make a folder for its owner only, unless told otherwise; those above it as usual."""
    mode = 0o777 if mode_in(path) == 0o666 else 0o700
    try:
        path.mkdir(mode, exist_ok=exist_ok)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode, exist_ok=exist_ok)


def opener(path: str, flags: int) -> int:
    """For ``open``: a new file gets the permissions of its run; nothing goes through a link."""
    return descriptor(path, flags | NO_LINK, mode_in(Path(path).parent))


def write_text(path: Path, text: str) -> None:
    """Write a file of text."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)


def replace_file(
    path: Path, *parts: bytes | memoryview, exclusive: bool = False, mode: int | None = None
) -> None:
    """Give ``path`` the content ``parts`` in one step: temporary file, fsync, rename.

    With ``exclusive`` the file must not exist yet (``FileExistsError``), which also settles
    a race between two processes. Any failure is an ``OSError`` and leaves ``path`` as it was.
    Its permissions are those of its run, unless ``mode`` says others.
    """
    # The process id keeps two processes that replace the same file out of each other's way.
    temp = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        allowed = mode_in(path.parent) if mode is None else mode
        with contextlib.suppress(FileNotFoundError):
            temp.unlink()  # what a process of the same id left, or a link that somebody laid there
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | BINARY, allowed)
        try:
            for part in parts:
                _write_all(fd, part)
            os.fsync(fd)
        finally:
            os.close(fd)
        if exclusive:
            _link_new(temp, path)
        else:
            os.replace(temp, path)
    finally:
        with contextlib.suppress(OSError):
            temp.unlink()
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make renames in a folder last through a power cut, where the platform can."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class Appender:
    """The end of one file: each ``append`` adds all of its bytes or, on failure, none.

    ``size`` is the length up to which the file is known good. What a failed write left
    behind it is cut off at once, or before the next write if even that fails now.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        """Open or make ``path``; bytes beyond ``keep`` are cut off."""
        self.path = path
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_LINK
        self._fd = descriptor(path, flags, mode_in(path.parent))
        try:
            actual = os.fstat(self._fd).st_size
            self.size: int = actual if keep is None else min(keep, actual)
            self._torn = self.size < actual
            self._cut()
        except OSError:
            os.close(self._fd)
            raise

    def append(self, data: bytes | memoryview) -> None:
        """Add ``data``; an ``OSError`` means that the file still ends where it did."""
        self._cut()
        self._torn = True
        try:
            _write_all(self._fd, data)
        except OSError:
            with contextlib.suppress(OSError):
                self._cut()
            raise
        self._torn = False
        self.size += len(data)

    def sync(self) -> None:
        """Wait until the disk has it."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Let go of the file; whether the disk is well is for ``sync`` to say."""
        with contextlib.suppress(OSError):
            os.close(self._fd)

    def _cut(self) -> None:
        if self._torn:
            os.ftruncate(self._fd, self.size)
            self._torn = False


def _write_all(fd: int, data: bytes | memoryview) -> None:
    # A disk that fills up writes a part first and says so only on the next call.
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _link_new(temp: Path, path: Path) -> None:
    try:
        os.link(temp, path)
    except FileExistsError:
        raise
    except OSError:
        # Some network and FAT file systems have no hard links; there a race stays open.
        if path.exists():
            raise FileExistsError(f"{path} exists") from None
        os.replace(temp, path)

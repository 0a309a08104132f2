"""Files that a script writes: how long they are at a checkpoint, and as long again after a resume.

A first run notes which files its script opens for writing. In a resumed one they become what they
were at the checkpoint when the script opens them itself, so that no row comes twice: what was
written after the checkpoint is kept in the run folder and written once more. Only a path that the
script opens for writing is ever touched. On the way from pass to pass what the script writes was
written before: files that it opens take nothing in.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..records.resuming import OutputOpened
from ..run.script_files import KEPT
from ..source.ownership import kind_of
from .refusal import say

_WRITES = frozenset("wax+")
_WHOLE = 1 << 20
"""Bytes up to which a file that is written anew each time goes into the checkpoint."""
_MANY = 2000
"""Files. A script that writes more writes results, not a log."""


class Outputs:
    """Stands before ``open`` in the process of a script.

    Args:
        note: told of the first time that a file is opened for writing.
    """

    def __init__(self, note: Callable[[OutputOpened], object]) -> None:
        self.coming: Coming | None = None
        """While and after the script is resumed: what its files were."""
        self._note = note
        self._appended: dict[str, bool] = {}
        self._handles: dict[str, list[weakref.ref[Any]]] = {}
        self._in_place_of: list[tuple[weakref.ref[Any], str]] = []
        """Files that take nothing in, and the paths they are there for."""
        self._open: Any = builtins.open

    def watch(self) -> None:
        """Be what ``open`` means from now on."""
        if self._open is not builtins.open:
            return

        @functools.wraps(self._open)
        def open(file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
            return self._opened(sys._getframe(1), file, mode, *args, **named)

        builtins.open = io.open = open  # type: ignore[assignment]

    def _opened(self, frame: FrameType, file: Any, mode: str, *args: Any, **named: Any) -> Any:
        if not isinstance(file, str | bytes | os.PathLike) or not isinstance(mode, str):
            return self._open(file, mode, *args, **named)
        writes, coming = not _WRITES.isdisjoint(mode), self.coming
        if not writes and coming is None:
            return self._open(file, mode, *args, **named)
        caller = _caller(frame)
        if caller is None:
            return self._open(file, mode, *args, **named)
        path = os.path.realpath(os.fsdecode(file))
        if coming is not None:
            file, mode = coming.opens(path, file, mode, caller)
        before = _stat(path) if writes else None
        opened = self._open(file, mode, *args, **named)
        if writes and coming is not None and file is os.devnull:
            self._stands_in(opened, path)
        elif writes and file is not os.devnull and len(self._appended) < _MANY:
            self._remember(path, "a" in mode, before, opened)
        return opened

    def _remember(
        self, path: str, appends: bool, before: os.stat_result | None, opened: Any
    ) -> None:
        if path not in self._appended:
            size = before.st_size if before is not None else 0
            self._note(OutputOpened(file=path, bytes=size, appends=appends))
        self._appended[path] = self._appended.get(path, False) or appends
        with contextlib.suppress(TypeError):
            self._handles.setdefault(path, []).append(weakref.ref(opened))

    def _stands_in(self, opened: Any, path: str) -> None:
        """A file that takes nothing in is there in place of one."""
        raw = getattr(opened, "buffer", opened)
        raw = getattr(raw, "raw", raw)
        with contextlib.suppress(AttributeError, TypeError):
            raw.name = path  # as the script knows it
            self._handles.setdefault(path, []).append(weakref.ref(opened))
            self._in_place_of.append((weakref.ref(opened), path))

    def _open_really(self, coming: Coming) -> None:
        """What takes nothing in, and is open still, goes on at the end of its file."""
        held, self._in_place_of = self._in_place_of, []
        for one, path in held:
            opened = one()
            if opened is None or opened.closed:
                continue
            opened.flush()
            coming.settle(path)
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.dup2(file, opened.fileno(), inheritable=False)
            finally:
                os.close(file)
            self._appended[path] = True

    def knows(self, opened: Any) -> bool:
        """Whether an open file was opened here: its length is noted with every checkpoint."""
        return any(one() is opened for held in self._handles.values() for one in held)

    def _live(self, path: str) -> list[Any]:
        handles = [(one, one()) for one in self._handles.get(path, ())]
        kept = [(one, held) for one, held in handles if held is not None and not held.closed]
        self._handles[path] = [one for one, _ in kept]
        return [held for _, held in kept]

    def state(self) -> list[list[Any]]:
        """Path, length and, of what is written anew each time, the contents of each file."""
        found: list[list[Any]] = []
        for path, appended in self._appended.items():
            held = self._live(path)
            for one in held:
                with contextlib.suppress(OSError, ValueError):
                    one.flush()
            with contextlib.suppress(OSError):
                about = os.stat(path)
                if not stat.S_ISREG(about.st_mode):
                    continue
                whole = not (appended or held) and about.st_size <= _WHOLE
                found.append([path, about.st_size, _bytes(path) if whole else None])
        return found

    def arrived(self) -> None:
        """The script has come to its place: what it has opened is as long as it was."""
        if self.coming is None:
            return
        self.coming.here = True
        self._open_really(self.coming)
        for path in list(self._appended):
            for one in self._live(path):
                with contextlib.suppress(OSError, ValueError):
                    one.flush()
            self.coming.settle(path)


class Coming:
    """What the files of a resumed script were at the checkpoint.

    Args:
        saved: as ``Outputs.state`` gave it.
        first: lengths of files when the earlier run opened them first, by path.
        since: when the earlier run began to train.
        folder: of this run, for what is cut off.
        refuse: ends the process, with a reason, a file and a line.
    """

    def __init__(
        self,
        saved: Iterable[Any],
        first: Mapping[str, int],
        since: float,
        folder: Callable[[], Path | None],
        refuse: Callable[[str, str, int], object],
    ) -> None:
        self.under_way = False
        """Whether a pass was over already."""
        self.here = False
        """Whether the script has come to its place."""
        then = {str(path): (int(size), contents) for path, size, contents in saved}
        self._then: dict[str, tuple[int, Any]] = {p: (n, None) for p, n in first.items()} | then
        self._since, self._folder, self._refuse = since, folder, refuse

    def opens(self, path: str, file: Any, mode: str, caller: FrameType) -> tuple[Any, str]:
        """The script opens a file: what to open in its place, and how."""
        if _WRITES.isdisjoint(mode):
            if self.here and not self._is_settled(path):
                # A checkpoint may come from anybody: what the script only reads is not written.
                text = (
                    f"{path} is read and is not what it was at the checkpoint; put it back, or "
                    "have the script write it before it reads it"
                )
                self._refuse(text, caller.f_code.co_filename, caller.f_lineno)
            return file, mode
        if self.here:
            self.settle(path)
            return file, mode
        if self.under_way and os.path.isfile(path):
            return os.devnull, mode.replace("x", "w")
        if path in self._then:
            size = self._then[path][0]
            if _length(path) < size:
                text = f"{path} is shorter than it was at the checkpoint ({size:,} bytes)"
                self._refuse(text, caller.f_code.co_filename, caller.f_lineno)
            # To be cut when the script is there; until then nothing of it is lost.
            return file, mode.replace("w", "a").replace("x", "a")
        if "w" in mode and self._newer(path):
            text = f"{os.fspath(file)} is opened for writing anew; what was written is lost"
            self._refuse(text, caller.f_code.co_filename, caller.f_lineno)
        return file, mode

    def _is_settled(self, path: str) -> bool:
        """Whether a file is what it was at the checkpoint, or nothing is known of it."""
        size, contents = self._then.get(path, (-1, None))
        if size < 0 or not os.path.isfile(path):
            return True
        same = _length(path) == size
        return same and (not isinstance(contents, bytes) or _bytes(path) == contents)

    def settle(self, path: str) -> None:
        """Make a file what it was, once; what is cut off is kept in the folder of the run."""
        size, contents = self._then.pop(path, (-1, None))
        if size < 0 or not os.path.isfile(path):
            return
        now = _length(path)
        if isinstance(contents, bytes) and len(contents) == size:
            if now > _WHOLE or _bytes(path) == contents:
                return
            kept = self._keep(path, 0)
            Path(path).write_bytes(contents)
            say(f"{path} is again what it was at the checkpoint{kept}")
        elif now > size:
            kept = self._keep(path, size)
            os.truncate(path, size)
            say(f"{path} is cut back from {now:,} to {size:,} bytes{kept}")

    def _keep(self, path: str, first: int) -> str:
        folder = self._folder()
        if folder is None:
            return ""
        target = folder / KEPT / os.path.basename(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with io.FileIO(path) as source:
            source.seek(first)
            target.write_bytes(source.readall())
        return f"; the rest is in {target}"

    def _newer(self, path: str) -> bool:
        try:
            about = os.stat(path)
        except OSError:
            return False
        return about.st_size > 0 and about.st_mtime > self._since


def _caller(frame: FrameType | None) -> FrameType | None:
    """Where the script, or a library for it, opens a file; None for what torch and holdfast do."""
    if frame is None or kind_of(frame.f_code.co_filename) == "torch":
        return None
    at: FrameType | None = frame
    while at is not None and kind_of(at.f_code.co_filename) != "user":
        at = at.f_back
    return at


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _length(path: str) -> int:
    about = _stat(path)
    return about.st_size if about is not None else 0


def _bytes(path: str) -> bytes:
    with io.FileIO(path) as file:
        return file.readall()

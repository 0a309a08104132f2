"""Stacks of a process that is not ours to stop: asked for by a signal, read from its memory file.

Only a process that answers the signal, and still has the file open, is asked: the signal would end
any other.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import sysconfig
import time
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ..boot import REPORTED, STACKS_FILE, STACKS_SIGNAL
from ..records.crash import LoaderWork
from ..redaction import redact_code

# Seconds until an answer must have begun, and after which one that grows no more is complete.
_PATIENCE, _QUIET = 1.0, 0.05
_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')
_WORKER = "_worker_loop"
# Lines before and after the one at which a process stands, and characters of each.
_AROUND, _LONGEST = 4, 240
_HERE = str(Path(__file__).parents[1])
_LIBRARIES = tuple(
    os.path.join(folder, "")
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    for folder in {sysconfig.get_path(name), os.path.realpath(sysconfig.get_path(name))}
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    @property
    def of_user(self) -> bool:
        """Whether it is code of the script, not of Python, a package or holdfast."""
        if self.file.startswith(("<", *_LIBRARIES)) or "-packages" + os.sep in self.file:
            return False
        # The catalogue's faults are scripts that happen to live in our package.
        ours = self.file.startswith(os.path.join(_HERE, ""))
        return not ours or self.file.startswith(os.path.join(_HERE, "faults", ""))

    def excerpt(self) -> tuple[tuple[int, str], ...]:
        """Numbers and text of its line and those around it; empty where the file is not there."""
        first, last = max(1, self.line - _AROUND), self.line + _AROUND
        try:
            with tokenize.open(self.file) as source:
                rows = [*itertools.islice(source, first - 1, last)]
        except (OSError, SyntaxError, ValueError):
            return ()
        texts = (redact_code(row.rstrip())[:_LONGEST] for row in rows)
        return tuple(enumerate(texts, first))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stacks:
    """Where a process stands."""

    pid: int
    frames: tuple[Frame, ...] = ()
    """Of its main thread, the innermost first."""
    threads: int = 0
    reported: LoaderWork = field(default_factory=LoaderWork)
    """What it says of its loader; empty while its main thread executes no Python."""
    text: str = ""

    @property
    def line(self) -> Frame | None:
        """The innermost line of the script on the main thread."""
        return next((frame for frame in self.frames if frame.of_user), None)


def read(pid: int, text: str) -> Stacks:
    """Read what ``faulthandler`` wrote, and what the process said itself.

    >>> text = 'Thread 0x1 (most recent call first):\\n  File "a.py", line 3 in wait\\n'
    >>> read(1, text).line
    Frame(file='a.py', line=3, function='wait')
    """
    threads: list[list[Frame]] = []
    reported = LoaderWork()
    for row in text.splitlines():
        if row.startswith(REPORTED.decode()):
            said: Any = None
            with contextlib.suppress(json.JSONDecodeError):  # not all of it was written
                said = json.loads(row.removeprefix(REPORTED.decode()))
            reported = LoaderWork.from_dict(said) if isinstance(said, dict) else reported
        elif "(most recent call first)" in row:
            threads.append([])
        elif threads and (found := _FRAME.fullmatch(row)):
            frame = Frame(found["file"], int(found["line"]), found["function"])
            threads[-1].append(frame)
    # The main thread is the oldest one, which comes last.
    main = threads[-1] if threads else []
    # A forked worker still has the calls of its parent below its own.
    own = next((i + 1 for i, frame in enumerate(main) if frame.function == _WORKER), len(main))
    return Stacks(
        pid=pid,
        frames=tuple(main[:own]),
        threads=len(threads),
        reported=reported,
        text=text.strip(),
    )


def ask(pid: int, clock: Callable[[], float] = time.monotonic) -> Stacks | None:
    """The stacks of one process; None where it cannot be asked or does not answer."""
    with contextlib.suppress(OSError):
        file = _memory_file(pid)
        if file is None or not _answers(pid):
            return None
        with open(file, "rb", buffering=0) as stream:
            begin = stream.seek(0, os.SEEK_END)
            os.kill(pid, STACKS_SIGNAL)
            since, size, until = clock(), begin, clock() + _PATIENCE
            while clock() < until:
                time.sleep(0.01)
                now = stream.seek(0, os.SEEK_END)
                if now != size:
                    since, size = clock(), now
                elif size > begin and clock() - since > _QUIET:
                    break
            stream.seek(begin)
            text = stream.read(size - begin).decode("utf-8", "replace")
        return read(pid, text) if text.strip() else None
    return None


def family(pid: int) -> list[int]:
    """The process and all that it has started, itself first."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.Error:
        return [pid]


def is_there(pid: int) -> bool:
    """Whether there is such a process, one that has ended and was not waited for excluded."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def is_stopped(pid: int) -> bool:
    """Whether it was halted: Ctrl-Z, a debugger, a frozen container."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    return bool(re.search(r"^State:\s+[Tt]|^TracerPid:\s+[1-9]", status, re.MULTILINE))


def is_runnable(pid: int) -> bool:
    """Whether it runs or waits only for its turn, as on a machine with too much to do."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False


def effort(pids: list[int]) -> tuple[float, float]:
    """Seconds of CPU time, and bytes read and written, of some processes so far."""
    seconds = moved = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            used: Any = process.cpu_times()
            seconds += used.user + used.system
            io: Any = process.io_counters()
            moved += getattr(io, "read_chars", 0) + getattr(io, "write_chars", 0)
    return seconds, moved


def _memory_file(pid: int) -> str | None:
    return next((path for path, link in _open_files(pid) if f"memfd:{STACKS_FILE}" in link), None)


def _open_files(pid: int) -> Iterator[tuple[str, str]]:
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(OSError):
            yield path, os.readlink(path)


def _answers(pid: int) -> bool:
    """Whether a process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s+([0-9a-f]+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (STACKS_SIGNAL - 1) & 1)

"""Call the command line in a process of its own, forked from this one, and look at what it did."""

from __future__ import annotations

import importlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli import COMMANDS, main

# Once for all calls; what they measure is the reading.
for _, _module, _ in COMMANDS:
    if _module.rpartition(".")[2] not in ("run", "train", "predict"):
        importlib.import_module(_module)
SECONDS, MEGABYTES = 10.0, 300.0
"""What a call may take: seconds of processor time, and memory at its most."""
_FAILED = 97
_PATIENCE = 120
# What a terminal acts on, and what turns a line around; colours are off.
_ESCAPES = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_OFF = re.compile(r"holdfast: (detector \w+ \w+|reading a cause): .*")


@dataclass(frozen=True, slots=True)
class Called:
    """What one call did."""

    words: tuple[str, ...]
    code: int
    seconds: float
    megabytes: float
    said: str
    """The end of standard error; of a failure its traceback."""
    escapes: bool
    switched_off: tuple[str, ...]
    """Detectors that failed on the input."""

    @property
    def traceback(self) -> bool:
        """Whether an exception came through, or the interpreter died."""
        return self.code == _FAILED or self.code < 0

    @property
    def heavy(self) -> bool:
        """Whether it took more than a call may take."""
        return self.seconds > SECONDS or self.megabytes > MEGABYTES

    @property
    def place(self) -> str:
        """The last line of holdfast in the traceback, and the exception."""
        places = re.findall(r'/holdfast/(\S+?)", line (\d+)', self.said)
        last = self.said.strip().splitlines()[-1:] or [f"exit code {self.code}"]
        return f"{':'.join(places[-1]) if places else '?'}: {last[0][:120]}"


def call(words: Sequence[str], folder: Path) -> Called:
    """Carry out ``holdfast WORDS`` in a folder."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            _child(words, folder, out.fileno(), err.fileno())
        began = time.monotonic()
        while (ended := os.wait4(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() - began > _PATIENCE:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        _, status, used = ended
        texts = [_read(file) for file in (out, err)]
    both = "".join(texts)
    return Called(
        words=tuple(words),
        code=os.waitstatus_to_exitcode(status),
        seconds=used.ru_utime + used.ru_stime,
        megabytes=used.ru_maxrss / 1024,
        said=texts[1][-4000:],
        escapes=_ESCAPES.search(both) is not None,
        switched_off=tuple(_OFF.findall(texts[1])),
    )


def _child(words: Sequence[str], folder: Path, out: int, err: int) -> None:
    code = _FAILED
    try:
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        code = main(words)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read(file: object) -> str:
    file.seek(0)  # type: ignore[attr-defined]
    return file.read().decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]

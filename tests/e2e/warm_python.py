"""Processes that go on from a python that has imported torch (``warm/sitecustomize.py``).

For scripts whose start is not what is tested: each is a process of its own with its own streams,
environment and exit status, and importing torch costs it nothing. Where an interpreter is built in
another way than ``sitecustomize.py`` expects, the processes start as usual.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

OF_WARM = {"stdin", "stdout", "stderr", "bufsize", "start_new_session"}
"""What a warm process may be given."""


class _Server:
    """Started with the first request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._line, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def ask(self, asked: dict[str, Any], streams: list[int]) -> int:
        """The process that a server has made, 0 where there is none."""
        with self._lock:
            if self._process is None:
                self._process = self._start(asked["environment"])
            try:
                socket.send_fds(self._line, [json.dumps(asked).encode()], streams)
                return int(self._line.recv(64) or 0)
            except OSError:
                return 0

    def _start(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        path = [str(Path(__file__).parent / "warm"), environment.get("PYTHONPATH", "")]
        number = self._theirs.fileno()
        plain = {k: v for k, v in environment.items() if not k.startswith("PYTHON")}
        own = {"WARM_LINE": str(number), "PYTHONPATH": os.pathsep.join(filter(None, path))}
        with self._theirs:
            return subprocess.Popen(
                [sys.executable, "script.py"],
                env=plain | own,
                pass_fds=[number],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def close(self) -> None:
        """It ends with its line."""
        self._line.close()
        self._theirs.close()
        if self._process is not None:
            self._process.wait()


SERVER = _Server()


class WarmPopen(subprocess.Popen[Any]):
    """As its parent, except for what the kernel tells a parent only: the server passes that on."""

    status: int | None = None
    """Where the exit status comes from; None where the process is an ordinary one."""

    def _execute_child(self, *given: Any) -> None:
        ordinary: Any = super()
        given_by_name = inspect.signature(ordinary._execute_child).bind(*given).arguments
        asked = {
            "words": given_by_name["args"][1:],
            "environment": given_by_name["env"],
            "cwd": str(given_by_name["cwd"]),
            "session": given_by_name["start_new_session"],
        }
        own = (("p2cread", 0), ("c2pwrite", 1), ("errwrite", 2))
        streams = [n if given_by_name[name] == -1 else given_by_name[name] for name, n in own]
        reading, writing = os.pipe()
        self.pid = SERVER.ask(asked, [*streams, writing])
        os.close(writing)
        if not self.pid:
            os.close(reading)
            return ordinary._execute_child(*given)
        self.status = reading
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        return ordinary._close_pipe_fds(*(given_by_name[name] for name in pipes))

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self.status is None:
            ordinary: Any = super()
            return ordinary._try_wait(wait_flags)
        if wait_flags and not select.select([self.status], [], [], 0)[0]:
            return 0, 0
        reported = os.read(self.status, 64)
        os.close(self.status)
        return self.pid, int(reported or signal.SIGKILL)

    def _internal_poll(self, *given: Any, **named: Any) -> int | None:
        if self.status is None:
            ordinary: Any = super()
            return ordinary._internal_poll(*given, **named)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

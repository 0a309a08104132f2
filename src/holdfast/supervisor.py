"""The small parent of ``holdfast run``: starts the real python, passes signals on, writes.

The script runs in a child of its own, in the same process group and on the same terminal, so
that nothing about it changes. The parent drains the rings while it runs and once more when it
is gone, however it went, and then leaves with the script's own exit status.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from . import config
from .boot import OWNER_VARIABLE, RUN_VARIABLE, SETTINGS_VARIABLE, SITE
from .config import Settings
from .detectors import ALL, load_plugins
from .report import end_summary
from .run import Run
from .scribe import Scribe

_TICK = 0.2
_FSYNC = 5.0

# Signals a launcher may send to us and means for the script.
_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
)
# The kernel raised it: Ctrl-C on the terminal, which the script has received as well.
_FROM_TERMINAL = 0x80


def child_environment(run: Run, owner: str, settings: Settings) -> dict[str, str]:
    """The script's environment: its own, and what lets holdfast in."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(SITE), path] if path else [str(SITE)])
    environment[RUN_VARIABLE] = str(run.path.resolve())
    environment[OWNER_VARIABLE] = owner
    environment[SETTINGS_VARIABLE] = config.to_json(settings)
    return environment


def supervise(command: Sequence[str], run: Run, settings: Settings) -> int:
    """Run ``python *command`` under guard; returns what ``waitpid`` said about it."""
    owner = uuid.uuid4().hex
    plugins = load_plugins(os.environ, ALL)
    for warning in plugins.warnings:
        _say(f"holdfast: {warning}")
    scribe = Scribe(run, owner, settings, (*ALL, *plugins.detectors), _say)
    watched = {*_FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, *command],
        child_environment(run, owner, settings),
        setsigmask=mask,
    )
    try:
        status = _wait(pid, watched, scribe)
    finally:
        scribe.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for error in scribe.errors:
        _say(f"holdfast: could not record everything: {error}")
    return status


def _wait(pid: int, watched: set[signal.Signals], scribe: Scribe) -> int:
    while True:
        info = signal.sigtimedwait(watched, _TICK)
        if info is not None and info.si_signo in _FORWARDED:
            if info.si_code != _FROM_TERMINAL:
                _pass_on(pid, info.si_signo)
            continue
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        scribe.tick()


def _pass_on(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def finish(run: Run, status: int, *, quiet: bool, main: bool) -> None:
    """Close the books of a run: its last facts, and the summary a person reads."""
    if run.remove_if_empty():
        return
    if main:
        code = os.waitstatus_to_exitcode(status)
        run.update_meta(status="finished", exit_code=code, finished=datetime.now(UTC).isoformat())
        if not quiet:
            _say(end_summary(run, color=sys.stderr.isatty()))


def leave_like(status: int) -> int:
    """The exit code to leave with; a script ended by a signal ends us by the same."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    sys.stdout.flush()
    sys.stderr.flush()
    # One core dump, the script's, is enough.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    number = signal.Signals(-code)
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(1)
    return 128 - code


def _say(line: str) -> None:
    """One write, so that lines of several processes never mix."""
    try:
        os.write(2, (line if line.endswith("\n") else line + "\n").encode())
    except OSError:
        return

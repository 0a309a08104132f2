"""Supervisor, the parent of ``holdfast run``: starts python, forwards signals, records.

The script runs in a child of its own, in the same process group and on the same terminal, so
that nothing about it changes. The supervisor drains the rings while it runs and once more when it
has ended, however it ended, and then exits with the script's own exit status.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from .. import config
from ..boot import (
    OWNER_VARIABLE,
    RUN_VARIABLE,
    SETTINGS_VARIABLE,
    SITE,
)
from ..config import Settings
from ..detectors import ALL, load_plugins
from ..report import end_summary, make_page
from ..run import Run
from .drain import Drain
from .memory_gauge import Ended
from .signal_probe import SignalProbe

_TICK = 0.5

# Signals that a launcher may send to us for the script.
_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
)
# Linux counts in KiB, macOS in bytes.
_MAXRSS = 1 if sys.platform == "darwin" else 1024
# The kernel raised it: Ctrl-C on the terminal, which the script has received as well.
_FROM_TERMINAL = 0x80
_TAKES_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def child_environment(run: Run, owner: str, settings: Settings) -> dict[str, str]:
    """The script's environment: its own, and the variables that load holdfast."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([SITE, path] if path else [SITE])
    environment[RUN_VARIABLE] = str(run.path.resolve())
    environment[OWNER_VARIABLE] = owner
    environment[SETTINGS_VARIABLE] = config.to_json(settings)
    return environment


def interpreter_options(words: Sequence[str]) -> list[str]:
    """Options of our own interpreter, which the script's interpreter gets too.

    Without ``-I``, ``-E`` and ``-S``: they would keep holdfast out.

    >>> interpreter_options(["python", "-uE", "-X", "dev", "-m", "holdfast", "run", "-u"])
    ['-u', '-X', 'dev']
    """
    options: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            break
        if word in _TAKES_VALUE:
            options += [word, next(rest, "")]
        elif word.startswith(("--", "-W", "-X")):
            options.append(word)
        elif letters := word[1:].translate({ord(c): None for c in "IES"}):
            options.append(f"-{letters}")
    return options


def supervise(command: Sequence[str], run: Run, settings: Settings) -> int:
    """Run ``python *command`` guarded; returns its ``waitpid`` status."""
    _fill_standard_streams()
    owner = uuid.uuid4().hex
    plugins = load_plugins(os.environ, ALL)
    for warning in plugins.warnings:
        say(f"holdfast: {warning}")
    drain = Drain(run, owner, settings, (*ALL, *plugins.detectors), say)
    watched = {*_FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    with SignalProbe(set(_FORWARDED)) as signal_probe:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, *interpreter_options(sys.orig_argv), *command],
            child_environment(run, owner, settings),
            setsigmask=mask,
        )
        ended = None
        try:
            ended = _wait(pid, watched, drain, signal_probe)
            status = ended.status
        finally:
            drain.close(ended)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for error in drain.errors:
        say(f"holdfast: could not record everything: {error}")
    return status


def _wait(pid: int, watched: set[signal.Signals], drain: Drain, signal_probe: SignalProbe) -> Ended:
    while True:
        info = signal.sigtimedwait(watched, _TICK)
        if info is not None and info.si_signo in _FORWARDED:
            if info.si_code != _FROM_TERMINAL and not signal_probe.heard(info.si_signo):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, info.si_signo)
            continue
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return Ended(pid, status, used.ru_maxrss * _MAXRSS)
        drain.tick()


def finish(run: Run, status: int, *, quiet: bool, main: bool) -> None:
    """Finish the record of a run; an error here must not affect the script's exit code."""
    try:
        if not run.path.exists():
            say(f"holdfast: the run folder {run.path} was removed; nothing was recorded")
        elif not run.remove_if_empty() and main:
            code = os.waitstatus_to_exitcode(status)
            run.update_meta(
                status="finished", exit_code=code, finished=datetime.now(UTC).isoformat()
            )
            make_page(run, say)
            if not quiet:
                say(end_summary(run, color=os.isatty(2)))
    except Exception as error:
        say(f"holdfast: could not write the summary: {error}")


def leave_like(status: int) -> int:
    """Exit code of the script; if a signal ended it, end this process by the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    # One core dump, the script's, is enough.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    time.sleep(1)
    return 128 - code


def say(line: str) -> None:
    """Write a line at once, so that lines of several processes never mix."""
    with contextlib.suppress(OSError):
        os.write(2, (line if line.endswith("\n") else line + "\n").encode())


def _fill_standard_streams() -> None:
    """Where one is closed, a file of ours would take its number and receive what is printed.

    The descriptor is ours alone: the script finds its streams as it would without us.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)

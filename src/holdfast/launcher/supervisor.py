"""Supervisor, the parent of ``holdfast run``: starts the command, forwards signals, records.

The command runs in a child of its own, in the same process group and on the same terminal, so
that nothing about it changes. The supervisor drains the rings while it runs and once more when it
has ended, however it ended, and then exits with the script's own exit status. What judges and
reports is imported when the script has been started, and is there before the script has torch.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from .. import config
from ..boot import (
    NO_RUN,
    OWNER_VARIABLE,
    RESUME_VARIABLE,
    RUN_VARIABLE,
    SETTINGS_VARIABLE,
    SITE,
)
from ..config import Settings
from ..errors import UsageError
from ..harmless import visible, without_commands
from ..run import Run
from ..run.resumption import RESUMED_FROM
from ..types import Finding
from .child_memory import ChildEnd
from .hung import HungProcess
from .signal_probe import SignalProbe

if TYPE_CHECKING:
    from .drain import Drain

_TICK = 0.5

# Signals that a launcher may send to us for the script.
_FORWARDED = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
)
ENDING = frozenset((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
"""Signals by which somebody asks a run to end."""
# Linux counts in KiB, macOS in bytes.
_MAXRSS = 1 if sys.platform == "darwin" else 1024
# The kernel raised it: Ctrl-C on the terminal, which the script has received as well.
_FROM_TERMINAL = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the process of a script ended."""

    pid: int
    status: int
    """As ``waitpid`` tells it."""
    asked: str = ""
    """The signal by which somebody asked it to end; empty where nobody did."""
    hung: Finding | None = None
    """Why it was ended, where it hung."""

    @property
    def failed(self) -> bool:
        """Whether it did not come to its own end."""
        return self.status != 0 or self.hung is not None


def child_environment(run: Run | None, owner: str, settings: Settings) -> dict[str, str]:
    """The script's environment: its own, and the variables that load holdfast."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([SITE, path] if path else [SITE])
    environment[RUN_VARIABLE] = NO_RUN if run is None else str(run.path.resolve())
    environment[OWNER_VARIABLE] = owner
    environment[SETTINGS_VARIABLE] = config.to_json(settings)
    if run is not None and RESUMED_FROM in run.meta:
        environment[RESUME_VARIABLE] = str(run.meta[RESUMED_FROM]["checkpoint"])
    return environment


def supervise(argv: Sequence[str], run: Run | None, settings: Settings) -> Outcome:
    """Run a command guarded, to the end of its process; without a run nothing is recorded.

    Raises:
        UsageError: the command cannot be started.
    """
    _fill_standard_streams()
    owner = uuid.uuid4().hex
    watched = {*_FORWARDED, signal.SIGCHLD}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    with SignalProbe(set(_FORWARDED)) as signal_probe:
        try:
            pid = os.posix_spawnp(
                argv[0], list(argv), child_environment(run, owner, settings), setsigmask=mask
            )
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise UsageError(
                f"cannot start {argv[0]}: {error.strerror}; check that it runs without holdfast"
            ) from error
        drain = None
        if run is not None:
            try:
                drain = _open_drain(run, owner, settings)
                drain.child = pid
            except Exception as error:
                say(f"holdfast: nothing of this run is recorded: {error}")
        ended, asked = None, list[int]()
        ending = {*ENDING, *(signal.Signals[name] for name in settings.checkpoint.signals)}
        hung = HungProcess(pid, settings.restart.grace)
        try:
            restarts = settings.restart.times > 0
            ended = _wait(pid, watched, drain, signal_probe, hung, ending, asked, restarts)
        finally:
            hung.bury()
            if drain is not None:
                drain.close(ended)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for error in () if drain is None else drain.errors:
        say(f"holdfast: could not record everything: {error}")
    assert ended is not None
    if hung.ended_for is not None and not settings.restart.times:
        say(f"holdfast: ended the run, which would wait for ever: {hung.ended_for.message}")
    names = {signal.Signals(number).name for number in ending}
    reported = ended.signal if hung.ended_for is None and ended.signal in names else ""
    reported = signal.Signals(asked[0]).name if asked else reported
    return Outcome(pid=pid, status=ended.status, asked=reported, hung=hung.ended_for)


def _open_drain(run: Run, owner: str, settings: Settings) -> Drain:
    """What records and judges, with the detectors of plugins."""
    from ..detectors import ALL, load_plugins
    from .drain import Drain
    from .heartbeat import Heartbeat

    plugins = load_plugins(os.environ, ALL)
    for warning in plugins.warnings:
        say(f"holdfast: {warning}")
    heartbeat = Heartbeat(settings.run.hang_after)
    # A process that may be started again ends without a summary of its own.
    alone = os.environ.get("WORLD_SIZE", "1") == "1" and not settings.restart.times
    detectors = (*ALL, *plugins.detectors)
    return Drain(run, owner, settings, detectors, put, heartbeat, summed_up=alone)


def _wait(
    pid: int,
    watched: set[signal.Signals],
    drain: Drain | None,
    signal_probe: SignalProbe,
    hung: HungProcess,
    ending: Collection[int],
    asked: list[int],
    restarts: bool,
) -> ChildEnd:
    """Wait for the end of the child; ``asked`` gets those of ``ending`` that came.

    A run that hangs is ended where it can be started again (``restarts``), and where ranks wait for
    one that is gone or through with its data.
    """
    while True:
        info = signal.sigtimedwait(watched, _TICK)
        if info is not None and info.si_signo in _FORWARDED:
            asked += [info.si_signo] * (info.si_signo in ending)
            if info.si_code != _FROM_TERMINAL and not signal_probe.heard(info.si_signo):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, info.si_signo)
            if info.si_signo in ending and drain is not None:
                drain.saw_signal(signal.Signals(info.si_signo).name)
            continue
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return ChildEnd(pid, status, used.ru_maxrss * _MAXRSS)
        if drain is None:
            continue
        drain.tick()
        hung.tick(drain.hung if restarts else drain.abandoned)


def finish(run: Run, status: int, *, quiet: bool, main: bool) -> None:
    """Finish the record of a run; an error here must not affect the script's exit code."""
    from ..report import Terminal, end_summary, make_page

    try:
        reported = run.lacks_ring()  # by the script, which had no room to record
        if not run.path.exists():
            say(f"holdfast: the run folder {run.path} was removed; nothing was recorded")
        elif run.remove_if_empty():
            if main and not quiet and status == 0 and not reported:
                say("holdfast: no backward pass and no optimizer step were seen; nothing to record")
        elif main:
            code = os.waitstatus_to_exitcode(status)
            run.update_meta(
                status="finished", exit_code=code, finished=datetime.now(UTC).isoformat()
            )
            make_page(run, say)
            if not quiet:
                put(end_summary(run, Terminal.of(sys.stderr)))
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
    """Write a line at once, without anything that a terminal or a log would act on."""
    put(without_commands(visible(line)))


def put(line: str) -> None:
    """Write a finished line at once, so that lines of several processes never mix."""
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

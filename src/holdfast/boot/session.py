"""The engine of this process: under ``holdfast run`` made at ``import torch`` and ended at exit.

In a process that runs already one is attached, for as long as a framework trains.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import multiprocessing
import os
import platform
import sys
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import HoldfastError
from ..harmless import visible_line
from ..records.run import Start
from ..torch_version import check_torch
from . import (
    NEEDED,
    NO_RUN,
    OWNER_VARIABLE,
    RESUME_VARIABLE,
    RUN_VARIABLE,
    SETTINGS_VARIABLE,
    exits,
    unguarded,
)
from .stacks import answer_stacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..guard.engine import Engine
    from ..run import Recorder

_engine: Engine | None = None
_attached = False
_forks_followed = False
_noting: list[Engine] = []
"""Engines of loops that are watched, for which loaders note their draws; the newest is the last."""


def current() -> Engine | None:
    """The engine of this process, if holdfast is loaded."""
    return _engine


# The same for patches, which ask several times in every step: without a call of Python's.
_asked: Callable[[], Engine | None] = functools.partial(getattr, sys.modules[__name__], "_engine")


def begin() -> None:
    """Start after ``import torch``: make the engine and install the patches.

    What needs torch is imported in here, where a torch that is broken or too old is noticed
    and the script runs all the same.
    """
    undo = None
    try:
        check_torch()
        from . import patches

        undo = patches.uninstall
        _make_engine()
        patches.install(_asked)
        answer_stacks(_open_lane)
        if sys.excepthook is sys.__excepthook__:
            sys.excepthook = _show
        atexit.register(_end)
        # Once: neither workers nor scripts that this one starts are resumed.
        checkpoint = os.environ.pop(RESUME_VARIABLE, "")
        if checkpoint and _engine is not None and multiprocessing.parent_process() is None:
            _engine.resume_from(Path(checkpoint))
        _follow_forks()
    except Exception as error:
        if undo is not None:
            undo()
        _stay_out(error)


def _stay_out(error: Exception) -> None:
    """Holdfast cannot start: the script runs without it, where that does no harm."""
    text = " ".join(str(error).split())
    line = f"holdfast: could not start ({text}); the script runs unguarded"
    if isinstance(error, ModuleNotFoundError) and error.name in NEEDED:
        advice = "to guard it, install holdfast in that environment"
        line = unguarded(f"{sys.executable} has no {error.name}", advice)
    sys.stderr.write(f"{visible_line(line)}\n")
    if os.environ.get(RESUME_VARIABLE) and multiprocessing.parent_process() is None:
        # It would begin at step 0, over its outputs.
        sys.stderr.write("holdfast: cannot resume without a guard; the script was not run\n")
        sys.stderr.flush()
        os._exit(2)


def attach(engine: Engine) -> None:
    """Guard this process, which has no engine, from here on: all patches of ``holdfast run``.

    Whoever attaches records the run, and detaches at its end.
    """
    global _engine, _attached
    from . import patches

    patches.install(_asked)
    _engine, _attached = engine, True
    _follow_forks()


def detach() -> None:
    """Remove the patches again: torch is what it was."""
    global _engine, _attached
    from . import patches

    patches.uninstall()
    patches.wrap_steps()
    _engine, _attached = None, False


def note_indices(engine: Engine) -> Callable[[], None]:
    """Have loaders note the samples they draw, for a loop that is watched; returns its end."""
    from . import patches

    _noting.append(engine)
    patches.install_indices(lambda: _noting[-1] if _noting else None)

    def end() -> None:
        _noting.remove(engine)
        if not _noting:
            patches.uninstall_indices()

    return end


def _make_engine() -> None:
    global _engine
    from .. import config
    from ..guard.engine import Engine
    from ..run.durable import share

    settings = config.from_json(os.environ.get(SETTINGS_VARIABLE, "{}"))
    share(settings.run.shared)

    def open_recorder() -> Recorder:
        if multiprocessing.parent_process() is not None:
            # Children of multiprocessing leave through os._exit, past atexit.
            multiprocessing_util.Finalize(None, _end, exitpriority=100)
        try:
            return _open_recorder(settings.run.ring_mib)
        except HoldfastError as error:
            # Without a record the parent has nothing to say at the end.
            if not settings.run.quiet and os.environ.get(RUN_VARIABLE) != NO_RUN:
                why = visible_line(str(error))
                sys.stderr.write(f"holdfast: nothing of this run can be recorded: {why}\n")
            raise

    _engine = Engine(settings, open_recorder)
    _engine.follow_script()


def _open_recorder(mebibytes: int) -> Recorder:
    from ..run import Recorder, Run

    run = Run.open(Path(os.environ[RUN_VARIABLE]))
    owner = os.environ.get(OWNER_VARIABLE, "")
    return Recorder(run, rank(), os.getpid(), owner, mebibytes << 20)


def _open_lane() -> None:
    if _engine is not None:
        _engine.open()


def _follow_forks() -> None:
    global _forks_followed
    if not _forks_followed:
        _forks_followed = True
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    """After a fork: the child must not write to our ring and starts a new one."""
    global _engine
    if _engine is None:
        return
    if not _attached:
        _make_engine()
        return
    # A worker of a loader, mostly; one that trains is guarded, but nobody would read its record.
    from ..guard.engine import Engine

    _engine = Engine(_engine.settings, _no_recorder)


def _no_recorder() -> Recorder:
    raise HoldfastError("a child of a process that is watched has no record of its own")


def rank() -> int:
    """The rank of this process, as its launcher or the process group says."""
    for variable in ("RANK", "SLURM_PROCID"):
        value = os.environ.get(variable, "")
        if value.isdigit() and (variable == "RANK" or os.environ.get("MASTER_ADDR")):
            return int(value)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return 0


def _show(kind: type[BaseException], error: BaseException, traceback: Any) -> None:
    """Print an uncaught exception as python does, without the calls of our patches."""
    with contextlib.suppress(Exception):
        from ..diagnosis.crash.traceback_frames import hide_ours

        hide_ours(error)
    sys.__excepthook__(kind, error, error.__traceback__)


def record_without_torch() -> None:
    """A script that never imported torch is ending, perhaps with an error."""
    from ..diagnosis.crash import exception
    from ..diagnosis.crash.record import ends_the_run, record

    error, gave_up = _ended_by()
    if error is None or not ends_the_run(error) or os.environ.get(RUN_VARIABLE) == NO_RUN:
        return
    recorder = _open_recorder(1)
    python = platform.python_version()
    recorder.event(0, Start(pid=os.getpid(), rank=recorder.rank, python=python))
    left = None if gave_up is None else str(gave_up)
    record(recorder, 0, exception.facts(error).replace(gave_up=left))
    recorder.close()


def _end() -> None:
    """At exit: write pending rows, and the exception that ended the process."""
    global _engine
    engine, _engine = _engine, None
    if engine is not None:
        with contextlib.suppress(KeyboardInterrupt):  # python would print where it met us
            engine.end(*_ended_by())


def _ended_by() -> tuple[BaseException | None, object]:
    """The exception that ends this process, if any; the exit code where it was given up on."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        return error, None
    # A child of multiprocessing is still inside its exception here.
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        # torch.multiprocessing leaves so after an exception that it has reported.
        return (error.__context__ if error.code else None), None
    if error is not None or exits.leaving is None:
        return error, None
    from ..diagnosis.crash.given_up import given_up, returned

    leaving = exits.leaving
    if returned(leaving.outermost):
        return None, None
    return given_up(leaving.handled, leaving.code, leaving.caller), leaving.code

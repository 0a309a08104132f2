"""The engine of this process under ``holdfast run``: made at ``import torch``, ended at exit."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import sysconfig
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from ..torch_version import check_torch
from . import OWNER_VARIABLE, RUN_VARIABLE, SETTINGS_VARIABLE

if TYPE_CHECKING:
    from ..guard.engine import Engine
    from ..guard.recorder import Recorder

_engine: Engine | None = None


def current() -> Engine | None:
    """The engine of this process, if holdfast is in."""
    return _engine


def begin() -> None:
    """Torch has been imported: make the engine and put the patches in.

    What needs torch is imported in here, where a torch that is broken or too old is noticed
    and the script runs all the same.
    """
    undo = None
    try:
        check_torch()
        from . import patches

        undo = patches.uninstall
        _make_engine()
        patches.install(current)
        atexit.register(_end)
        os.register_at_fork(after_in_child=_forked)
    except Exception as error:
        if undo is not None:
            undo()
        text = " ".join(str(error).split())
        sys.stderr.write(f"holdfast: could not get in ({text}); the script runs unguarded\n")


def _make_engine() -> None:
    global _engine
    from .. import config
    from ..guard.engine import Engine

    settings = config.from_json(os.environ.get(SETTINGS_VARIABLE, "{}"))

    def open_recorder() -> Recorder:
        from ..guard.recorder import Recorder
        from ..run import Run

        run = Run.open(Path(os.environ[RUN_VARIABLE]))
        if multiprocessing.parent_process() is not None:
            # Children of multiprocessing leave through os._exit, past atexit.
            multiprocessing_util.Finalize(None, _end, exitpriority=100)
        return Recorder(
            run,
            rank(),
            os.getpid(),
            os.environ.get(OWNER_VARIABLE, ""),
            settings.run.ring_mib << 20,
        )

    _engine = Engine(settings, open_recorder)


def _forked() -> None:
    """A child shares our mapping of the ring and must never write to it: it starts anew."""
    if _engine is not None:
        _make_engine()


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


def _end() -> None:
    """The interpreter leaves: what is on its way is written, and what it died of."""
    global _engine
    engine, _engine = _engine, None
    memory = engine.lookouts.memory if engine is not None else None
    ran_out = memory is not None and memory.ran_out
    if engine is None or (engine.journal.recorder is None and not ran_out):
        return
    try:
        engine.journal.opened()
        from ..redaction import redact_text

        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and engine.journal.recorder is not None:
            file, line = blame(error.__traceback__)
            engine.journal.recorder.event(
                "exception",
                engine.journal.iteration,
                {
                    "type": type(error).__name__,
                    "message": redact_text(str(error)[:2000]),
                    "file": file,
                    "line": line,
                },
            )
        engine.close()
    except Exception as failure:
        from ..guard.shield import failed

        failed(engine, "closing", failure)


def blame(traceback: TracebackType | None) -> tuple[str, int]:
    """The innermost line of the user's own code in a traceback."""
    found = ("", 0)
    libraries = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    libraries.add(str(Path(__file__).parent.parent))
    prefixes = tuple(os.path.join(library, "") for library in libraries)
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(("<", *prefixes)):
            found = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found

"""What a task leaves in the run folder: at each best validation and after the last step.

Nothing that goes wrong there ends a training: it is a line, an event and a traceback in the folder.
"""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...checkpoint import rng
from ...errors import HoldfastError, RunFolderError
from ...records.trainer import HookFailed
from ...run import Ring, Run

ERRORS = "hook_errors.txt"
"""In the run folder: the tracebacks of what failed."""
# Share of the time since its last call that ``Task.improved`` may take.
_SHARE = 0.1
# Seconds to wait for the record to be on disk; the drain comes by five times a second.
_PATIENCE = 1.0
_PAUSE = 0.02


class RunHooks:
    """Calls ``Task.improved`` and ``Task.ended`` with the run folder, and counts their errors.

    Args:
        run: the folder.
        note: records an event.
        say: one line for people.
        clock: reads the time, for tests.
    """

    def __init__(
        self,
        run: Run,
        note: Callable[[str, Mapping[str, Any]], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._note, self._say, self._clock = run, note, say, clock
        self._began, self._took = -math.inf, 0.0
        self.errors = 0
        """Calls that failed so far."""

    def improved(
        self,
        hook: Callable[[Path, int], None],
        step: int,
        model_in_place: contextlib.AbstractContextManager[Any],
    ) -> None:
        """Call ``Task.improved``, unless that would take more than a tenth of the time."""
        began = self._clock()
        if began - self._began < self._took / _SHARE:
            return
        # Whether it is called depends on the clock; what is trained must not.
        state = rng.state()
        try:
            with model_in_place:
                self._call("improved", step, lambda: hook(self._run.path, step))
        finally:
            rng.put_back(state)
        self._began, self._took = began, self._clock() - began

    def ended(self, hook: Callable[[Path], None], step: int) -> None:
        """Call ``Task.ended`` once the record of the run is on disk."""
        deadline = time.monotonic() + _PATIENCE
        while not _is_on_disk(self._run) and time.monotonic() < deadline:
            time.sleep(_PAUSE)
        self._call("ended", step, lambda: hook(self._run.path))

    def _call(self, name: str, step: int, hook: Callable[[], None]) -> None:
        try:
            hook()
        except Exception as error:
            self.errors += 1
            reason = " ".join(str(error).split())
            if not isinstance(error, HoldfastError):
                reason = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
            failed = HookFailed(hook=name, step=step, error=reason, errors=self.errors)
            self._note(failed.kind, failed.to_dict())
            with contextlib.suppress(OSError), self._errors_file() as file:
                file.write(f"Task.{name} at step {step}\n{traceback.format_exc()}\n")
            self._say(
                f"holdfast: Task.{name} failed at step {step}, its traceback is in {ERRORS} of "
                f"the run folder: {reason}"
            )

    def _errors_file(self) -> Any:
        return (self._run.path / ERRORS).open("a", encoding="utf-8")


def _is_on_disk(run: Run) -> bool:
    """Whether nothing waits in a ring: then the files of the run are complete."""
    for lane in run.lanes():
        path = run.ring_path(lane)
        try:
            # An empty file is a lane that was claimed and has no ring yet.
            if not path.exists() or path.stat().st_size == 0:
                continue
            ring = Ring.attach(path, readonly=True)
        except (OSError, RunFolderError):
            continue  # gone meanwhile, or never to be drained
        try:
            if ring.peek(limit=1):
                return False
        finally:
            ring.detach()
    return True

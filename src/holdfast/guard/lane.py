"""Lane of this process in the run folder, opened on first use.

A script that never trains leaves nothing behind; one whose folder cannot be written is guarded
all the same.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..probes import STEP_COLUMNS
from ..run import Recorder, Table


class Lane:
    """Events and tables of one process.

    Args:
        open_recorder: makes the recorder.
        opening: the first Event after ``start``: its kind and its data.
    """

    def __init__(
        self,
        open_recorder: Callable[[], Recorder],
        opening: tuple[str, dict[str, Any]] | None = None,
    ) -> None:
        self.recorder: Recorder | None = None
        self.steps: Table | None = None
        """The table of steps, once it is open."""
        self._open_recorder = open_recorder
        self._opening = opening
        self._dead = False
        self._not_covered: set[str] = set()

    def opened(self) -> Recorder | None:
        """The recorder, opened with its first use; None when that failed."""
        if self.recorder is None and not self._dead:
            try:
                self.recorder = self._open_recorder()
            except Exception:
                # Cannot write: guarding goes on, the parent reports the empty lane.
                self._dead = True
                raise
            self.steps = self.recorder.table("steps", list(STEP_COLUMNS))
            self.recorder.event("start", 0, _environment(self.recorder.rank))
            if self._opening is not None:
                self.recorder.event(self._opening[0], 0, self._opening[1])
        return self.recorder

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return 0 if self.recorder is None else self.recorder.rank

    @property
    def has_orders(self) -> bool:
        """Whether the process that judges asks for something; one comparison per step."""
        return self.recorder is not None and self.recorder.ring.has_message

    def orders(self) -> list[dict[str, Any]]:
        """What it asks for."""
        return [] if self.recorder is None else self.recorder.orders()

    def run_folder(self) -> Path | None:
        """The folder of the run; None while it is not open."""
        return None if self.recorder is None else self.recorder.run.path

    def event(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Write an Event."""
        recorder = self.opened()
        if recorder is not None:
            recorder.event(kind, step, data)

    def not_covered(self, step: int, what: str, why: str) -> None:
        """Report, once, what the guard cannot do for this run."""
        if why not in self._not_covered and self.opened() is not None:
            self._not_covered.add(why)
            self.event("not_covered", step, {"what": what, "why": why})

    def failure(self, step: int, where: str, error: Exception) -> None:
        """Record that a part of holdfast failed and was switched off."""
        text = f"{type(error).__name__}: {error}"
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        if at is not None:
            text += f" ({os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno})"
        try:
            self.event("holdfast_error", step, {"where": where, "error": text})
        except Exception:
            self._dead = True


def _environment(rank: int) -> dict[str, Any]:
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return {
        "pid": os.getpid(),
        "rank": rank,
        "world": world,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu",
        "script": os.path.basename(sys.argv[0]) if sys.argv else "",
    }

"""Counts the steps of a script from inside and ends it after so many, or after so many CPU seconds.

Not imported: compiled under a name that is no file, in the ``sitecustomize`` of the process that is
measured. So the script is the only code of a user's there, and stands on the stack alone.
"""

import atexit
import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

SETTINGS = "HEALTHY_CLOCK"
"""Where to write, CPU seconds at most, steps at most (0: as many as there are)."""


class Clock:
    """One script."""

    def __init__(self, marks: str, seconds: float, steps: int) -> None:
        self._marks, self._seconds, self._most = marks, seconds, steps
        self._process = os.getpid()
        self._began = 0.0
        self._steps = 0

    def begin(self) -> None:
        """The first optimizer is there."""
        self._began = time.process_time()

    def step(self, *_: Any) -> None:
        """A step is over."""
        self._steps += 1
        over = not self._most and time.process_time() - self._began > self._seconds
        if over or self._steps == self._most:
            self.end(cut=1)
            os._exit(0)

    def end(self, cut: int = 0) -> None:
        """Write down what was spent."""
        if self._began and os.getpid() == self._process:
            spent = time.process_time() - self._began
            with open(self._marks, "w") as file:
                file.write(f"{spent} {self._steps} {cut}")


def load_compiler() -> None:
    """Load torch's compiler: a plain run has, when its first optimizer was made.

    A guarded one would at its first use, in the midst of training, or never.
    """
    importlib.import_module("torch._dynamo")


def count_in_guard(clock: Clock) -> None:
    """Count where the guard hears of a step: a hook of torch's would keep it from its fast form."""
    from holdfast.boot import session

    engine: Any = session.current()
    fast = engine.state.fast

    def counted(ends: Callable[[Any], None]) -> Callable[[Any], None]:
        def step_ends(optimizer: Any) -> None:
            ends(optimizer)
            clock.step()

        return step_ends

    for hooks in (fast.plain, fast.short):
        hooks["step_ends"] = counted(hooks["step_ends"])
    engine.step_ends = fast.plain["step_ends"]


def install() -> None:
    """Count the steps of this process, and of no child of it."""
    marks, seconds, steps = os.environ.pop(SETTINGS).split()
    clock = Clock(marks, float(seconds), int(steps))
    made = torch.optim.Optimizer.__init__
    guarded = bool(os.environ.get("HOLDFAST_RUN"))
    if not guarded:
        register_optimizer_step_post_hook(clock.step)

    def first(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign]
        load_compiler()
        if guarded:
            count_in_guard(clock)
        clock.begin()

    torch.optim.Optimizer.__init__ = first  # type: ignore[method-assign]
    atexit.register(clock.end)


install()

"""Host time by part of the guard, measured in place, so that a regression names its part.

The methods of the guard are wrapped and a part is charged with the time in its methods less the
time in those of other parts that they call: parts add up. What the wrappers cost is measured before
and taken off. Wrap before the engine is made, which may hold on to bound methods. Without a GPU
the time is CPU time of the thread, which other work on the machine does not move.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable
from time import perf_counter_ns, thread_time_ns
from typing import Any

import torch

PARTS: dict[str, dict[str, str]] = {
    "loader probe": {
        "guard.engine.Engine": "copied",
        "guard.hooks.loader.LoaderHooks": "fetch_begins fetched drew",
        "guard.fast.burst_hooks.BurstHooks": "fetch_begins fetched",
        "probes.batches.LoaderBatches": "handed_out step",
    },
    "resume": {"resume.script.ScriptResume": "asks asks_again begins began ends"},
    "loss": {
        "guard.hooks.backward.BackwardHooks": "backward_begins backward_ends",
        "probes.loss.Losses": "saw",
        "guard.finite_loss.FiniteLoss": "seen returned",
        "guard.fast.burst_hooks.BurstHooks": "backward_begins backward_ends",
        "guard.fast.burst.StepBurst": "backward_begins backward_ended",
    },
    "scaler": {
        "guard.hooks.scaler.ScalerHooks": (
            "scaled scaler_begins scaler_ends scaler_used scaler_updated"
        ),
        "guard.fast.burst_hooks.BurstHooks": "scaler_begins scaler_used",
    },
    "norms": {
        "guard.hooks.clip.ClipHooks": "clip_begins clip_ends",
        "guard.fast.door.FastSteps": "open clip learn",
        "guard.fast.burst_hooks.BurstHooks": "clip_begins clip_ends",
        "guard.fast.burst.StepBurst": "step_begins clip_begins clip_ends",
        "guard.optimizer_guard.OptimizerGuard": "before after measure_late",
        "probes.gradients.NormMeter": "measure judge",
    },
    "optimizer wrap": {
        "guard.hooks.optimizer.OptimizerHooks": "made leaves step_begins step_ends scheduled",
        "guard.fast.burst_hooks.BurstHooks": "step_begins step_ends",
    },
    "phases": {"probes.timing.Phases": "mark add take take_host"},
    "row": {
        "guard.fast.burst.StepBurst": "step_ends record",
        "guard.fast.bursts.StepBursts": "begin end",
        "guard.fast.burst_rows.BurstRows": "close _arrived",
        "guard.step_writer.StepWriter": "number close_step arrived _write put",
        "run.recorder.RowTable": "put put_array",
    },
    "look-outs": {
        "diagnosis.watchers.Watchers": "backward fetched step_ended resume",
        "diagnosis.crash.swallowed.SwallowedErrors": "look",
        "diagnosis.nonfinite.investigation.Investigation": "calls_backward came_from",
    },
    "snapshots": {
        "recovery.rollback.Recovery": "due boundary concerns known after_step",
        "recovery.live_state.LiveState": "first_step saw_scaler saw_scheduler",
    },
}
"""Part, class below ``holdfast``, its methods. A hook's frame around the parts counts as theirs."""

_CALIBRATION = 20_000
_clock = perf_counter_ns if torch.cuda.is_available() else thread_time_ns


class PartTimers:
    """Wraps the methods of ``PARTS``; ``spent`` has nanoseconds by part while ``on``."""

    def __init__(self) -> None:
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.missing: list[str] = []
        """Methods that the guard no longer has: the table above is out of date."""
        self._inner: list[float] = []
        self._undo: list[Callable[[], None]] = []
        self._within = self._around = 0.0

    def install(self) -> None:
        """Calibrate and wrap."""
        self._calibrate()
        for part, classes in PARTS.items():
            for place, names in classes.items():
                module, _, cls = place.rpartition(".")
                with contextlib.suppress(ModuleNotFoundError, AttributeError):
                    owner = getattr(importlib.import_module(f"holdfast.{module}"), cls)
                    self._wrap_methods(part, owner, names.split())
                    continue
                self.missing.append(place)

    def _wrap_methods(self, part: str, owner: type, names: list[str]) -> None:
        for name in names:
            original = owner.__dict__.get(name)
            if inspect.isfunction(original):
                setattr(owner, name, self._timed(part, original))
                self._undo.append(functools.partial(setattr, owner, name, original))
            else:
                self.missing.append(f"{owner.__name__}.{name}")

    def remove(self) -> None:
        """Take the wrappers out again."""
        while self._undo:
            self._undo.pop()()

    def clear(self) -> None:
        """Count from zero."""
        for part in self.spent:
            self.spent[part] = 0.0

    def per_step(self, steps: int) -> dict[str, float]:
        """Microseconds of each part in a step."""
        return {part: max(0.0, ns) / steps / 1e3 for part, ns in self.spent.items()}

    def _timed(self, part: str, original: Callable[..., Any]) -> Callable[..., Any]:
        spent, inner, within, around = self.spent, self._inner, self._within, self._around

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            inner.append(0.0)
            began = _clock()
            try:
                return original(*args, **kwargs)
            finally:
                took = _clock() - began
                spent[part] += took - within - inner.pop()
                if inner:
                    inner[-1] += took + around

        return timed

    def _calibrate(self) -> None:
        """What a wrapper adds to what it times, and to what calls it."""
        part = next(iter(PARTS))

        def nothing(_: object) -> None:
            return None

        wrapped = self._timed(part, nothing)
        bare = _time(nothing)
        whole = _time(wrapped)
        self._within = max(0.0, self.spent[part] / _CALIBRATION - bare)
        self._around = max(0.0, whole - bare - self._within)
        self.clear()


def _time(call: Callable[[object], None]) -> float:
    began = _clock()
    for _ in range(_CALIBRATION):
        call(None)
    return (_clock() - began) / _CALIBRATION

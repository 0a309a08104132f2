"""When the loop may stop before its last step, decided on the device.

The counters never leave the device. The host looks at one flag, now and then and one look late,
so that it never waits for the newest work: see ``DelayedFlag``.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .settings import ConvergenceSettings

__all__ = ["Convergence", "ConvergenceState", "DelayedFlag", "EarlyStop"]

_WINDOW = 5
_GROWTH = 0.01
_LATE = 10
_MOSTLY = 0.8


class ConvergenceState(NamedTuple):
    """What earlier checks left; small tensors on the device, replaced by each check.

    Attributes:
        done_5: finished flows at the last five checks, newest first; NaN before the first.
        stall: checks in a row at which hardly more had finished.
        stop: a rule has held; it stays true.
    """

    done_5: Tensor
    stall: Tensor
    stop: Tensor


class Convergence:
    """The rules for stopping early.

    From ``least_steps`` on the loop stops when the share of finished flows reaches
    ``threshold``, when nothing is alive, when the moving average of finished flows (five checks)
    grew by less than 1 % at ``patience`` checks in a row, or, after step 10 and with more than
    80 % finished, at more than half of these. As long as that average is zero nothing has
    stalled: the first flows are still on their way.
    """

    def __init__(self, settings: ConvergenceSettings) -> None:
        self.settings = settings

    def start(self, device: torch.device | str | None = None) -> ConvergenceState:
        """The state before the first step."""
        return ConvergenceState(
            done_5=torch.full((_WINDOW,), torch.nan, device=device),
            stall=torch.zeros((), dtype=torch.long, device=device),
            stop=torch.zeros((), dtype=torch.bool, device=device),
        )

    def update(
        self, state: ConvergenceState, done: Tensor, made: Tensor, alive: Tensor, step: int
    ) -> tuple[ConvergenceState, Tensor]:
        """One check, before lattice step ``step``; meant for every step.

        Args:
            state: from ``start`` or the check before.
            done: finished flows, scalar.
            made: flows of the first generation and children, scalar.
            alive: flows still on their way, scalar.
            step: the step that comes next, from 0.

        Returns:
            The new state and the flag to stop, a bool on the device.
        """
        settings = self.settings
        if not settings.on or step < settings.least_steps:
            return state, state.stop
        done_5 = torch.cat((done.float().reshape(1), state.done_5[:-1]))
        before, now = state.done_5.nanmean(), done_5.nanmean()
        # Not so at the first check, which compares with NaN, nor while both are zero.
        stalled = now - before < _GROWTH * before
        stall = torch.where(stalled, state.stall + 1, 0)
        rate = done / made.clamp(min=1)
        stop = state.stop | (rate >= settings.threshold) | (alive <= 0)
        stop = stop | (stall >= settings.patience)
        if step > _LATE:
            stop = stop | ((rate > _MOSTLY) & (stall > settings.patience // 2))
        return ConvergenceState(done_5, stall, stop), stop


class DelayedFlag:
    """Brings a flag from the device to the host without waiting for the newest work.

    On a GPU ``look`` starts a copy of the flag and answers with the one of the look before: the
    work queued in between goes on meanwhile. What it answers never depends on timing. On a CPU
    there is nothing to wait for, and it answers at once. Make one for each run of the loop.
    """

    def __init__(self) -> None:
        self._host: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def look(self, flag: Tensor) -> bool:
        """Whether the flag was set: at the look before on a GPU, now on a CPU."""
        if not flag.is_cuda:
            return bool(flag)
        seen = False
        if self._host is None or self._copied is None:
            self._host = torch.zeros((), dtype=torch.bool, pin_memory=True)
            self._copied = torch.cuda.Event()
        else:
            self._copied.synchronize()
            seen = bool(self._host)
        self._host.copy_(flag, non_blocking=True)
        self._copied.record()
        return seen


class EarlyStop:
    """Tells before each step whether the flows still move; made anew for each pass.

    What the flows do follows the flag on the device, at exactly the step the rules say. The host
    sees the flag later and then leaves the loop, which changes no number. In a graph that is being
    captured nothing can be read: all steps are launched, and those after the stop move nothing.

    Args:
        settings: the rules.
        device: of the flows.
        every: steps between two looks of the host; as the settings say if not given.
    """

    def __init__(
        self, settings: ConvergenceSettings, device: torch.device, every: int | None = None
    ) -> None:
        self._rules, self._every = Convergence(settings), every or settings.every
        self._state = self._rules.start(device)
        self._flag = DelayedFlag()

    def check(self, t: int, done: Tensor, made: Tensor, alive: Tensor) -> tuple[Tensor, bool]:
        """The flag to stand still, a bool on the device, and whether the host may leave."""
        self._state, stop = self._rules.update(self._state, done, made, alive, t)
        settings = self._rules.settings
        looks = settings.on and t >= settings.least_steps
        looks = looks and (t - settings.least_steps) % self._every == 0
        if not looks or torch.compiler.is_compiling() or _is_capturing():
            return stop, False
        return stop, self._flag.look(stop)


def _is_capturing() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

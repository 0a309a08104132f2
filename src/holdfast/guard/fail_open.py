"""Fail open: a part of holdfast that fails is switched off and recorded; training goes on.

The same wrapper counts the time that is spent in here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

import torch

from ..probes.timing import Phases

_CUDA = torch.backends.cuda.is_built()
# Without CUDA these are dummies of torch, or not there.
_bad_fork: Callable[[], bool] = getattr(torch._C, "_cuda_isInBadFork", bool)
_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing if _CUDA else bool
stream_of: Callable[[int], int] = torch._C._cuda_getCurrentRawStream if _CUDA else int
current_device: Callable[[], int] = torch._C._cuda_getDevice if _CUDA else lambda: -1
"""Without the call around it, which asks whether CUDA is there."""

P = ParamSpec("P")
R = TypeVar("R")


class FailsOpen(Protocol):
    """An object with parts that can be switched off one by one."""

    off: set[str]
    """The parts that are switched off."""
    phases: Phases
    """The clock of the loop."""

    def failed(self, where: str, error: Exception) -> None:
        """A part failed: switch it off, restore everything, record it."""
        ...


class EnginePart:
    """A part of the engine: what fails in it is switched off for all others too.

    Args:
        owner: of the switches and of the clock.
    """

    def __init__(self, owner: FailsOpen) -> None:
        # By their own names: they are asked for several times in every step.
        self.off, self.phases, self.failed = owner.off, owner.phases, owner.failed


S = TypeVar("S", bound=FailsOpen)


def fail_open(
    where: str, ends: str = ""
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R | None]]:
    """Wrap an entry of the engine or of one of its parts.

    Args:
        where: the part of holdfast it belongs to.
        ends: the phase of the loop that is over where it begins.
    """

    def decorate(
        method: Callable[Concatenate[S, P], R],
    ) -> Callable[Concatenate[S, P], R | None]:
        call: Any = method

        @functools.wraps(method)
        def entry(self: S, *args: Any) -> R | None:
            if self.off and where in self.off:
                return None
            began, phases = perf_counter(), self.phases
            within, phases.ours = phases.ours, True
            try:
                if ends and not phases.idle:
                    phases.mark(ends, began)
                return call(self, *args)
            except Exception as error:
                self.failed(where, error)
                return None
            finally:
                phases.ours = within
                if not within:
                    # Counted as ours, once, and kept out of the phase of the loop it falls into.
                    # Written out: this runs several times in every step.
                    spent = perf_counter() - began
                    phases.guard += spent
                    phases.last += spent

        return cast(Any, entry)

    return decorate


def attempt(owner: FailsOpen, where: str, what: Callable[..., R], *about: Any) -> R | None:
    """Call something the same way. Written out too: watchers are called so in every step."""
    if owner.off and where in owner.off:
        return None
    began, phases = perf_counter(), owner.phases
    within, phases.ours = phases.ours, True
    try:
        return what(*about)
    except Exception as error:
        owner.failed(where, error)
        return None
    finally:
        phases.ours = within
        if not within:
            spent = perf_counter() - began
            phases.guard += spent
            phases.last += spent


def out_of_reach() -> bool:
    """Inside a traced or captured region nothing of ours may run; the region is not guarded."""
    if torch.compiler.is_compiling():
        return True
    # What ``is_initialized`` asks, without its call.
    return _CUDA and torch.cuda._initialized and not _bad_fork() and capturing(current_device())


def capturing(device: int) -> bool:
    """Whether the current stream of a device is captured in a CUDA graph."""
    # The default stream cannot be, and to ask the driver takes as long as a launch.
    return stream_of(device) != 0 and _capturing()

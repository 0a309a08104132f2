"""Never break training, and know what we cost."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import torch

if TYPE_CHECKING:
    from .engine import Engine

_CUDA = torch.backends.cuda.is_built()
_RANKS = torch.distributed.is_available()

P = ParamSpec("P")
R = TypeVar("R")


def shielded(
    where: str, ends: str = ""
) -> Callable[[Callable[Concatenate[Engine, P], R]], Callable[Concatenate[Engine, P], R | None]]:
    """Every entry of the engine is wrapped in this: what fails is written down and switched off.

    Args:
        where: the part of holdfast it belongs to.
        ends: the phase of the loop that is over where it begins.
    """

    def decorate(
        method: Callable[Concatenate[Engine, P], R],
    ) -> Callable[Concatenate[Engine, P], R | None]:
        call: Any = method

        @functools.wraps(method)
        def entry(self: Engine, *args: Any) -> R | None:
            if self.off and where in self.off:
                return None
            began, phases = perf_counter(), self.phases
            within, phases.ours = phases.ours, True
            try:
                if ends:
                    phases.mark(ends, began)
                return call(self, *args)
            except Exception as error:
                failed(self, where, error)
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


def failed(engine: Engine, where: str, error: Exception) -> None:
    """Something of ours broke: switch it off, put everything back, write it down."""
    engine.off.add(where)
    if where == "guard":
        # Nobody will finish what is armed. A failed exam must leave the skip armed.
        for optimizer, guard in engine.roster.all():
            with contextlib.suppress(Exception):
                guard.release(optimizer)
    engine.journal.failure(where, error)


def attempt(engine: Engine, where: str, what: Callable[..., R], *about: Any) -> R | None:
    """Do something the same way."""
    return _attempts[where](engine, what, *about)


def _attempt(where: str) -> Callable[..., Any]:
    @shielded(where)
    def attempted(engine: Engine, what: Callable[..., Any], *about: Any) -> Any:
        return what(*about)

    return attempted


_attempts = {
    where: _attempt(where)
    for where in ("guard", "inquiry", "lookouts", "notes", "recovery", "update probe")
}


def ranks() -> int:
    """How many processes train together."""
    distributed = torch.distributed
    return distributed.get_world_size() if _RANKS and distributed.is_initialized() else 1


def out_of_reach() -> bool:
    """Inside a traced or captured region nothing of ours may run; the region is not guarded."""
    if torch.compiler.is_compiling():
        return True
    return _CUDA and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

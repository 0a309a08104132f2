"""Split the batch of a module's call where it does not fit into memory.

The same call is made in parts, whose results are put together and whose gradients add up to those
of the whole batch. Activations of a part are computed once more for its backward pass, so that no
more than one part of them is there at a time. What size fits is remembered.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...records.memory import BatchSplit, CodeLine
from . import structure
from .boundary import MOST, SplitCall
from .call import CallArguments, CannotSplit, ChangesArguments, Run, inside
from .memory import free_graph, ran_out, release
from .pieces import Compute, Made, Piece, Pieces, count, set_aside, why_not_exact
from .plan import SplitPlan, measured

__all__ = [
    "ARMED",
    "Compute",
    "Made",
    "Piece",
    "Pieces",
    "Split",
    "SplitBatch",
    "count",
    "free_graph",
    "hook",
    "inside",
    "offer",
    "ran_out",
    "release",
    "set_aside",
    "why_not_exact",
    "withdraw",
]

ARMED: list[bool] = []
"""Not empty once memory ran out in this process: what is asked in every call of a model."""

_hook: Callable[[type[nn.Module]], None] | None = None


def offer(hook: Callable[[type[nn.Module]], None]) -> None:
    """Say how calls of a class of modules are taken over: that is a patch."""
    global _hook
    _hook = hook


def withdraw() -> None:
    """Calls can no longer be taken over."""
    global _hook
    _hook = None


def hook(kind: type[nn.Module]) -> bool:
    """Take over the calls of a class; False where nobody can."""
    if _hook is not None:
        _hook(kind)
    return _hook is not None


@dataclass(slots=True)
class Split:
    """Parts that were made, or why there were none: news for the record."""

    module: str
    samples: int
    phase: str
    """Where memory ran out: ``forward``, ``backward`` or ``evaluation``."""
    parts: int = 0
    why: list[str] = field(default_factory=list[str])
    """Why the result is not exactly that of the whole batch."""
    refused: str = ""
    error: str = ""
    seconds: float = 0.0
    """Time lost with tries that failed."""
    place: CodeLine | None = None
    """The line of the script; None where it is not known."""

    def record(self) -> BatchSplit:
        """What is recorded of it."""
        return BatchSplit(
            module=self.module,
            samples=self.samples,
            phase=self.phase,
            parts=self.parts,
            exact=not self.why,
            why="; ".join(self.why),
            refused=self.refused,
            error=self.error,
            seconds=round(self.seconds, 3),
            **vars(self.place or CodeLine()),
        )


class SplitBatch:
    """Makes calls in parts; remembers what fits."""

    def __init__(self) -> None:
        self.armed = False
        """Calls go through the boundary from here on."""
        self.news: list[Split] = []
        self.whole = 0
        """Calls with gradients since the last step that were not made in parts."""
        # Numbers of the first argument that fit at once; with gradients and without.
        self._fits: dict[bool, int] = {}
        self._plans: weakref.WeakKeyDictionary[
            nn.Module, dict[Any, SplitPlan | tuple[type[CannotSplit], str]]
        ] = weakref.WeakKeyDictionary()
        self._trouble: Split | None = None
        self._began = 0.0
        self._result: Any = None

    def arm(self, phase: str, error: str, place: CodeLine | None = None) -> None:
        """Memory ran out in a call, or in a backward pass: the next call goes in parts.

        ``place`` is the line of the script.
        """
        self.armed = True
        ARMED[:] = [True]
        self._began = time.perf_counter()
        self._trouble = Split("", 0, phase, error=error, place=place)

    def state(self) -> dict[str, Any]:
        """Whether calls go in parts, and what fits, as plain data."""
        return {"armed": self.armed, "fits": [(bool(k), v) for k, v in self._fits.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self.armed = state["armed"]
        if self.armed:
            ARMED[:] = [True]
        self._fits = dict(state["fits"])

    @property
    def place(self) -> CodeLine:
        """The line of the script where memory ran out last, while that is not settled."""
        place = None if self._trouble is None else self._trouble.place
        return place or CodeLine()

    def __call__(
        self, module: nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make a call of a module, in as many parts as it takes."""
        gradients = torch.is_grad_enabled()
        if not gradients and not self._evaluates():
            # Nothing ran out so far; a call may change what it is given (a cache of states).
            return self._evaluated(module, run, args, kwargs)
        try:
            call = CallArguments(module, run, args, kwargs)
            if self._trouble is not None:
                release(call.device)
            plan = self._plan(call)
            parts = self._parts(call, gradients)
            while (error := self._tried(call, plan, parts, gradients)) is not None:
                # Not in there: the error holds the frames it came through, and they hold tensors.
                release(call.device)
                former = self.news[-1].place if self.news else None
                self.arm("forward" if gradients else "evaluation", error, former)
                parts = min(2 * parts, MOST, call.samples)
        except CannotSplit as refused:
            failed = self._refuse(module, str(refused))
            if failed and isinstance(refused, ChangesArguments):
                # The first try has changed them: a second one would compute something else.
                raise torch.OutOfMemoryError(failed) from None
        else:
            self.whole += gradients and parts == 1
            result, self._result = self._result, None
            return result
        # As the script has called it, so that an error is its own.
        return run(module, *args, **kwargs)

    def _evaluates(self) -> bool:
        """Whether calls without gradients are split, or about to be."""
        trouble = self._trouble
        return False in self._fits or (trouble is not None and trouble.phase == "evaluation")

    def _evaluated(
        self, module: nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return run(module, *args, **kwargs)
        except (RuntimeError, MemoryError) as failed:
            first = next(structure.tensors((args, kwargs)), None)
            if first is None or not ran_out(failed, first.device):
                raise
            self.arm("evaluation", str(failed))
        return self(module, run, args, kwargs)

    def _tried(
        self, call: CallArguments, plan: SplitPlan, parts: int, gradients: bool
    ) -> str | None:
        """Make a call in so many parts; the error where memory runs out, else None."""
        try:
            self._settle(call, plan, parts, gradients)
            self._result = self._made(call, plan, parts, gradients)
            return None
        except Exception as failed:
            if isinstance(failed, CannotSplit):
                raise
            out = ran_out(failed, call.device)
            if out and (parts >= min(MOST, call.samples) or not call.untouched()):
                raise
            if not out and parts == 1:
                raise
            if not out:
                # A model that cannot be called like this, although a few samples went well.
                why = f"a part of the batch fails: {type(failed).__name__}: {failed}"[:200]
                self._plans[call.module][call.signature] = CannotSplit, why
                self._trouble = self.news.pop() if self.news else None
                raise CannotSplit(why) from None
            return str(failed)

    def _made(self, call: CallArguments, plan: SplitPlan, parts: int, gradients: bool) -> Any:
        if parts == 1 and not gradients:
            return call.run(call.arguments)

        def shrunk(size: int) -> None:
            self._backward_shrunk(call, plan, size)

        return SplitCall(call, plan, parts, shrunk).result()

    def _parts(self, call: CallArguments, gradients: bool) -> int:
        fits = self._fits.get(gradients)
        parts = -(-call.numbers // fits) if fits else 1
        if self._trouble is not None and (self._trouble.phase != "evaluation") == gradients:
            parts = max(parts, 2)
        return max(1, min(parts, MOST, call.samples))

    def _settle(self, call: CallArguments, plan: SplitPlan, parts: int, gradients: bool) -> None:
        """Remember a size that is about to be tried, and what is told if it fits."""
        if parts > 1:
            self._remember(call, -(-call.samples // parts), gradients)
        trouble, self._trouble = self._trouble, None
        if trouble is None:
            return
        trouble.module, trouble.samples = type(call.module).__name__, call.samples
        trouble.parts, trouble.why = parts, list(plan.why)
        trouble.seconds = time.perf_counter() - self._began
        if self.news and self.news[-1].phase == trouble.phase:
            # A further try for the same batch.
            trouble.seconds += self.news.pop().seconds
        self.news.append(trouble)

    def _backward_shrunk(self, call: CallArguments, plan: SplitPlan, size: int) -> None:
        self._remember(call, size, True)
        parts = -(-call.samples // size)
        why = list(plan.why)
        if plan.random:
            why.append("in one step backward drew other random numbers than forward")
        reported = Split(type(call.module).__name__, call.samples, "backward", parts, why)
        if self.news and self.news[-1].phase == "backward":
            former = self.news.pop()
            reported.seconds, reported.error, reported.place = (
                former.seconds,
                former.error,
                former.place,
            )
        self.news.append(reported)

    def _remember(self, call: CallArguments, size: int, gradients: bool) -> None:
        numbers = size * (call.numbers // max(1, call.samples))
        self._fits[gradients] = max(1, min(numbers, self._fits.get(gradients, numbers)))

    def _plan(self, call: CallArguments) -> SplitPlan:
        known = self._plans.setdefault(call.module, {})
        signature = call.signature
        if signature not in known:
            try:
                known[signature] = measured(call)
            except CannotSplit as refused:
                # Not the exception itself: it would hold the frames it was raised in.
                known[signature] = type(refused), str(refused)
        plan = known[signature]
        if isinstance(plan, tuple):
            kind, why = plan
            raise kind(why)
        return plan

    def _refuse(self, module: nn.Module, why: str) -> str:
        """Tell why a call is not split; the error that asked for it, if any."""
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            trouble.module, trouble.refused, trouble.parts = type(module).__name__, why, 0
            self.news.append(trouble)
        return "" if trouble is None else trouble.error or "out of memory"

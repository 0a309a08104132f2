"""A model runs out of memory: its batch is split, or the step is skipped and comes once more."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from torch import nn

from ...actions import split_batch
from ...actions.split_batch import Compute
from ...diagnosis.memory.footprint import line_of
from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt, fail_open, out_of_reach


class MemoryHooks(EnginePart):
    """Hooks of calls of a model and of backward passes that run out of memory.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._training, self._memory = state.training, state.training.memory
        self._finite_loss, self._fast = state.finite_loss, state.fast

    @fail_open("memory")
    def compiled(self, model: nn.Module) -> None:
        """A compiled form of a model exists: it will be called in its place."""
        self._memory.made([model])

    def forward_fails(self, error: BaseException, module: nn.Module, frame: FrameType) -> bool:
        """A call of a model has raised; True when ``call_split`` should make it again."""
        if out_of_reach():
            return False
        self._fast.close()
        place = functools.partial(line_of, error, frame)
        return bool(
            attempt(self, "memory", self._memory.forward_fails, error, module, frame, place)
        )

    def call_split(
        self, module: nn.Module, run: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Make a call of a model, in parts where the batch does not fit."""
        if "memory" in self.off or split_batch.inside() or out_of_reach():
            return run(module, *args, **kwargs)
        return self._memory.call(module, run, args, kwargs)

    def backward_fails(self, error: BaseException, tensors: object) -> bool:
        """Backward has raised; True when the step is skipped and ``backward_lost`` comes next."""
        self._fast.close()
        finite = self._finite_loss
        alone = finite.depth == 1 and not finite.inside and "guard" not in self.off
        if not alone or not self._training.registry.all_skip() or out_of_reach():
            return False
        place = functools.partial(line_of, error, sys._getframe())
        return bool(attempt(self, "memory", self._memory.backward_fails, error, tensors, place))

    @fail_open("memory")
    def backward_lost(self, tensors: object) -> None:
        """A backward pass that ran out of memory is over: free its graph."""
        self._fast.forget()
        self._memory.lose(tensors)

    def in_pieces(
        self,
        batches: Sequence[Any],
        compute: Compute,
        undo: Callable[[str], None] | None = None,
        *,
        local: bool = False,
    ) -> None:
        """Forward and backward of the last batch by ``compute``, in pieces where it does not fit.

        The batches before it are those of this step whose gradients ``undo`` takes back; without
        it gradients of before are set aside meanwhile. ``local``: no rank waits for another.
        """
        self._fast.close()
        self._memory.in_pieces(batches, compute, self._training.iteration + 1, undo, local=local)

"""Patches for the memory watchers: begin and end of evaluation, and calls for gradients."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any

import torch
from torch import nn
from torch._C._dynamo import eval_frame

from ..actions import split_batch
from ..guard.engine import Engine
from ._patch import Function, GetEngine, Patch

_compiling = torch.compiler.is_compiling
_compiles: Function = getattr(eval_frame, "get_eval_frame_callback", lambda: None)


def _eval(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def eval(self: Any) -> Any:
        result = original(self)
        engine = engine_of()
        if engine is not None:
            engine.evaluates(sys._getframe())
        return result

    return eval


def _train(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        engine = engine_of() if mode else None
        if engine is not None:
            engine.trains()
        return original(self, mode)

    return train


def _grad(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is not None:
            engine.differentiates()
        return original(*args, **kwargs)

    return grad


def call_of_model(engine_of: GetEngine, original: Function) -> Function:
    """Calls of a class of models: one that runs out of memory is made again in parts."""

    # Nothing but a look at a list before the call: it is there in every step of every run.
    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if split_batch.ARMED and not _compiling():
            engine = _engine(engine_of)
            if engine is not None and engine.splits_calls:
                return engine.call_split(self, original, args, kwargs)
        try:
            return original(self, *args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            engine = _engine(engine_of)
            if engine is None or not engine.forward_fails(error, self, sys._getframe()):
                raise
        # Not above: the error holds the frames it came through, and they hold tensors.
        return engine.call_split(self, original, args, kwargs)

    call: Any = __call__
    with contextlib.suppress(AttributeError, TypeError):  # names of another torch
        # The model's own forward is compiled, as without us, and not this function.
        action = eval_frame._FrameAction
        strategy = eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT)
        eval_frame.set_code_exec_strategy(call.__code__, strategy)
    return call


def _engine(engine_of: GetEngine) -> Engine | None:
    """Ours, unless the call is made by code that is being compiled: there its result is."""
    return None if _compiling() or _compiles() is not None else engine_of()


def _compile(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        made, engine = original(*args, **kwargs), engine_of()
        if engine is not None and isinstance(made, nn.Module):
            engine.compiled(made)
        return made

    return compile


PATCHES = (
    Patch(
        target="torch.nn.Module.eval",
        why="an evaluation begins: graphs built from here on are unused",
        make=_eval,
    ),
    Patch(
        target="torch.nn.Module.train",
        why="an evaluation is over; not there while none is, for some loops call it in every step, "
        "and it is called for each module of a model",
        make=_train,
        on_order="evaluation",
    ),
    Patch(
        target="torch.autograd.grad",
        why="a graph built in evaluation is used after all: attacks, saliency, penalties",
        make=_grad,
    ),
    Patch(
        target="torch.compile",
        why="a compiled model is called in place of the one an optimizer was made for",
        make=_compile,
    ),
)

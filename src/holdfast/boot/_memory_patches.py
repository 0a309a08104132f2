"""Patches for the memory watchers: begin and end of evaluation, and calls for gradients."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ._patch import Function, GetEngine, Patch


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


PATCHES = (
    Patch(
        target="torch.nn.Module.eval",
        why="an evaluation begins: graphs built from here on are unused",
        make=_eval,
    ),
    Patch(
        target="torch.nn.Module.train",
        why="an evaluation is over",
        make=_train,
    ),
    Patch(
        target="torch.autograd.grad",
        why="a graph built in evaluation is used after all: attacks, saliency, penalties",
        make=_grad,
    ),
)

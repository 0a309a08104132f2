"""Patches for the memory watch: where evaluation begins and ends, and who asks for gradients."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from ..guard.engine import Engine
from ..guard.memory_watch import MemoryWatch
from ..guard.shield import attempt
from ._patch import Function, GetEngine, Patch


def _watch(engine: Engine | None) -> MemoryWatch | None:
    return None if engine is None else engine.lookouts.memory


def creates_graph(engine: Engine, loss: object) -> None:
    """``backward`` is called on ``loss`` with ``create_graph``."""
    watch = _watch(engine)
    if watch is not None and not torch.compiler.is_compiling():
        attempt(engine, "lookouts", watch.creates_graph, loss, sys._getframe())


def _eval(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def eval(self: Any) -> Any:
        result = original(self)
        watch = _watch(engine := engine_of())
        if engine is not None and watch is not None and not torch.compiler.is_compiling():
            attempt(engine, "lookouts", watch.evaluates, sys._getframe())
        return result

    return eval


def _train(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        # Called once for every module of a model: the common case must be short.
        engine = engine_of() if mode else None
        watch = _watch(engine)
        if engine is not None and watch is not None and watch.evaluation.open:
            attempt(engine, "lookouts", watch.trains)
        return original(self, mode)

    return train


def _grad(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        watch = _watch(engine := engine_of())
        if engine is not None and watch is not None:
            attempt(engine, "lookouts", watch.differentiates)
        return original(*args, **kwargs)

    return grad


PATCHES = (
    Patch(
        target="torch.nn.Module.eval",
        why="an evaluation begins: graphs that are built from here on are built for nobody",
        make=_eval,
    ),
    Patch(
        target="torch.nn.Module.train",
        why="an evaluation is over",
        make=_train,
    ),
    Patch(
        target="torch.autograd.grad",
        why="a graph that is built in evaluation is used after all: attacks, saliency, penalties",
        make=_grad,
    ),
)

"""Patches of a ``GradScaler``: what it scales, unscales, steps and updates."""

from __future__ import annotations

import functools
from time import perf_counter
from typing import Any

from ..guard.fast import direct_calls
from ._patch import Function, GetEngine, Patch


def _scaler_step(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        engine = engine_of()
        if engine is None or not self.is_enabled():
            return original(self, optimizer, *args, **kwargs)
        engine.scaler_begins(self)
        result = original(self, optimizer, *args, **kwargs)
        engine.scaler_ends(optimizer)
        return result

    return step


def _scale(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        engine = engine_of()
        if engine is None or not self.is_enabled():
            return original(self, outputs)
        engine.scaler_used(self)
        result = original(self, outputs)
        engine.scaled(outputs, result)
        return result

    return scale


def _unscale(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def _unscale_grads_(
        self: Any, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: Any
    ) -> Any:
        engine = engine_of()
        if engine is None or not engine.may_rewrite:
            return original(self, optimizer, inv_scale, found_inf, allow_fp16)
        torch_time_saved, answer = engine.torch_time_saved, None
        began = perf_counter() if torch_time_saved.timed else 0.0
        if not torch_time_saved.own:
            answer = direct_calls.unscale(optimizer, inv_scale, found_inf, allow_fp16)
        if answer is None:
            answer = original(self, optimizer, inv_scale, found_inf, allow_fp16)
        if began:
            torch_time_saved.took(perf_counter() - began)
        return answer

    return _unscale_grads_


def _scaler_update(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def update(self: Any, new_scale: Any = None) -> None:
        original(self, new_scale)
        engine = engine_of()
        # A scale that is set by hand is left as it is, also when it is the policy that sets it.
        if engine is not None and new_scale is None:
            engine.scaler_updated(self)

    return update


PATCHES = (
    Patch(
        target="torch.amp.GradScaler.step",
        why="a step the scaler skips never reaches the optimizer and must be counted here",
        make=_scaler_step,
    ),
    Patch(
        target="torch.amp.GradScaler.scale",
        why="backward is called on the scaled loss; the row wants the loss itself, and on request "
        "the scale begins lower",
        make=_scale,
    ),
    Patch(
        target="torch.amp.GradScaler._unscale_grads_",
        why="torch sorts gradients one by one before the one kernel that unscales them: that is "
        "skipped where they are of one kind, to pay for the guard",
        make=_unscale,
    ),
    Patch(
        target="torch.amp.GradScaler.update",
        why="on request the scale is kept above its floor and lowered after an explosion",
        make=_scaler_update,
    ),
)

"""Fast path through torch's own ``step`` and ``zero_grad``, to pay for the guard.

Around the arithmetic of an optimizer torch opens a span for its profiler, asks the compiler for
graph breaks and walks lists of hooks: 70 µs of a step and 36 of ``zero_grad`` on a CPU, more than
the guard takes to read the gradients of a small model. While nobody listens (no profiler, no
compiler, no hooks but ours) none of this has an effect, and it is skipped: the same arithmetic
by the same code of torch, to the same bits, and where the optimizer is fused by its kernels alone
(``guard.fast.prepared_update``). ``--no-fused`` leaves it as it is.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from time import perf_counter
from types import CodeType
from typing import Any

import torch
from torch.optim import Optimizer

from ..actions.foreign_step import skippable, unless_skipped
from ..actions.switch_to_fused import BY_FOREACH, begin_foreach, end_foreach
from ..guard.fast.prepared_update import STEPS, steps_of
from ._patch import Function, GetEngine, Patch

_WRAPPERS = ("torch.optim.optimizer", "torch.utils._contextlib")
"""Where torch defines what it wraps around a step: hooks, and the switch of gradient recording."""

_CLOSURE = {"closure"}
_NEVER = 1 << 60

_profiling = torch.autograd._profiler_enabled
_compiling = torch.compiler.is_dynamo_compiling
_record = torch._C._set_grad_enabled


def _step(engine_of: GetEngine, original: Function) -> Function:
    if getattr(original, "__globals__", None) is globals():
        return original  # inherited, and replaced in the parent already
    wrapper, arithmetic = _code_of_hooks(), _bare(original)
    inside = inspect.unwrap(original, stop=lambda step: step.__code__ is not wrapper)
    hooked = original
    if inside is not original or not getattr(original, "hooked", False):
        # Hooks of the script look at gradients: these are not hidden, the step is not called.
        hooked = Optimizer.profile_hook_step(unless_skipped(inside))
    # The two that install() registers are called directly here.
    before, after = _hooks("_global_optimizer_pre_hooks"), _hooks("_global_optimizer_post_hooks")

    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _compiling():
            return hooked(self, *args, **kwargs)
        engine, outermost = engine_of(), type(self).step
        if (
            arithmetic is None
            or engine is None
            or not engine.may_rewrite
            or outermost is not step
            or len(args) > 1
            or not kwargs.keys() <= _CLOSURE
            or len(before) != 1
            or len(after) != 1
            or self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _profiling()
            or self.defaults.get("differentiable")
        ):
            # A subclass that calls this through super() has had the hooks called already.
            inner = getattr(outermost, "__code__", None) is wrapper
            return (inside if inner else hooked)(self, *args, **kwargs)
        # Wrappers of optimizers hand on the closure that they were not given.
        given = (self, *args) if args and args[0] is not None else (self,)
        given, kwargs = engine.step_begins(self, given, kwargs) or (given, kwargs)
        known = STEPS.get(id(self))
        steps = (known and known()) or steps_of(self)
        torch_time_saved, seconds = engine.torch_time_saved, 0.0
        by_foreach = begin_foreach(self) if BY_FOREACH in self.__dict__ else ()
        # ``torch.no_grad``, without the objects it makes.
        recording = torch.is_grad_enabled()
        _record(False)
        try:
            if (update := steps.update) is None:
                result = arithmetic(*given, **kwargs)
                steps.prepare(self)
            else:
                result = _computed(*given[1:], **kwargs) if kwargs or len(given) > 1 else None
                began = perf_counter()
                if torch_time_saved.own:
                    arithmetic(self)
                elif not update.run(self, steps.grads, steps.more):
                    steps.drop()
                    arithmetic(self)
                seconds = perf_counter() - began
        finally:
            _record(recording)
            if by_foreach:
                end_foreach(by_foreach)
        if torch_time_saved.timed:
            torch_time_saved.took(seconds, steps=1)
        steps.left -= 1
        if not steps.left:
            steps.left = engine.compares(steps) or _NEVER
        engine.step_ends(self)
        return result

    # Torch wraps what does not say that it calls the hooks.
    vars(step)["hooked"] = True
    # A GradScaler asks for it in every step: read from the code it takes as long as the guard.
    vars(step)["__signature__"] = inspect.signature(original)
    return step


def _computed(closure: Any = None) -> Any:
    """What a closure returns, which torch calls before anything else."""
    if closure is None:
        return None
    _record(True)
    try:
        return closure()
    finally:
        _record(False)


def wrap_foreign_step(kind: Any) -> Callable[[], None]:
    """Make the steps of a class skippable that is the script's own; returns what undoes it."""
    own = kind.__dict__.get("step")
    known = kind.step
    hooked = getattr(known, "__code__", None) is _code_of_hooks()
    replacement = skippable(known.__wrapped__ if hooked else known, hooked=hooked)
    if hooked:
        replacement = Optimizer.profile_hook_step(replacement)
        vars(replacement)["hooked"] = True
    kind.step = replacement
    if own is None:
        return functools.partial(delattr, kind, "step")
    return functools.partial(setattr, kind, "step", own)


def _zero_grad(engine_of: GetEngine, original: Function) -> Function:
    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        engine = engine_of()
        kept = _compiling() or engine is None or not engine.may_rewrite
        if kept or not set_to_none or _profiling():
            original(self, set_to_none)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    return zero_grad


def _hooks(name: str) -> dict[int, Any]:
    """Hooks that torch calls for all optimizers; two that are never called if there are none."""
    return vars(sys.modules[Optimizer.__module__]).get(name, {})


def _code_of_hooks() -> CodeType:
    return Optimizer.profile_hook_step(_code_of_hooks).__code__


def _bare(step: Function) -> Function | None:
    """The step without torch's wrappers; None when something else wraps it too."""
    while (inner := getattr(step, "__wrapped__", None)) is not None:
        if step.__globals__["__name__"] not in _WRAPPERS:
            return None
        step = inner
    return step if step.__globals__["__name__"].startswith("torch.optim.") else None


# Without those that need a closure and those whose step torch hides from its compiler by replacing
# it, whenever the compiler happens to be imported.
_KINDS = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "Muon", "NAdam"),
    *("RMSprop", "Rprop", "SGD"),
)

PATCHES = (
    *(
        Patch(
            target=f"torch.optim.{kind}.step",
            why="what torch does around a step for its profiler and its compiler costs as much "
            "as the guard; skipped while neither is there",
            make=_step,
        )
        for kind in _KINDS
    ),
    Patch(
        target="torch.optim.Optimizer.zero_grad",
        why="the same around setting gradients to None",
        make=_zero_grad,
    ),
)

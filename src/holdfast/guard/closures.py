"""Optimizers with a closure: the gradients appear inside ``step()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import LBFGS, Optimizer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def why_not_skippable(optimizer: Optimizer, *, earlier_passes: int) -> str:
    """Why a step with a closure can only be observed; empty when it can be skipped."""
    if isinstance(optimizer, LBFGS):
        return "LBFGS evaluates its closure many times in a step"
    if earlier_passes and not type(optimizer).__module__.startswith("torch.optim"):
        return "it uses gradients from before and from within its closure"
    return ""


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The closure among the arguments of ``step``, if there is one."""
    closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
    return closure if callable(closure) else None


def with_guard(
    closure: Callable[[], Any],
    decide: Callable[[], object],
    give_up: Callable[[str], object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Arguments:
    """The arguments of ``step`` with a closure that decides when the user's has made gradients."""
    calls = 0

    def guarded_closure() -> Any:
        nonlocal calls
        result = closure()
        calls += 1
        vars(guarded_closure)["result"] = result  # of a step that is undone and returns nothing
        if calls == 1:
            decide()
        else:
            give_up("its closure is evaluated more than once in a step")
        return result

    if "closure" in kwargs:
        return args, {**kwargs, "closure": guarded_closure}
    return (args[0], guarded_closure, *args[2:]), kwargs

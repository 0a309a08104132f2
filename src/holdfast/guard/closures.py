"""Optimizers that are handed a closure: the gradients appear inside ``step()``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import LBFGS, Optimizer

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def why_not_skippable(optimizer: Optimizer, *, earlier_passes: int) -> str:
    """Why a step with a closure can only be watched; empty when it can be left out."""
    if isinstance(optimizer, LBFGS):
        return "LBFGS evaluates its closure many times in a step"
    if earlier_passes and not type(optimizer).__module__.startswith("torch.optim"):
        return "it uses gradients from before and from within its closure"
    return ""


def with_closure(closure: Callable[[], Any], args: tuple[Any, ...], kwargs: Any) -> Arguments:
    """The arguments of ``step`` with another closure in place of the user's."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs

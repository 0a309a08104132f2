"""Everything that a step of an optimizer can reach, copied and put back.

For steps whose code is not known: they may change weights, gradients, optimizer state, lists of
tensors of their own and plain numbers on themselves. Copied is what hangs on the optimizer by
dictionaries, lists, sets, tuples and other optimizers; objects of other classes are left as they
are.
"""

from __future__ import annotations

import inspect
import operator
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..shards import local

_GONE = object()
_OF_TORCH = {"defaults", "_warned_capturable_if_run_uncaptured", "_zero_grad_profile_name"}


def is_foreign(kind: type) -> bool:
    """Whether the ``step`` of a class is another than one of torch's."""
    step = inspect.unwrap(getattr(kind, "step", Optimizer.step))
    return getattr(step, "__module__", "").partition(".")[0] != "torch"


def own_attributes(optimizer: object) -> dict[str, Any]:
    """What a script's class keeps on its optimizer, beside what every optimizer of torch has."""
    shared = _OF_TORCH | {"state", "param_groups", "found_inf", "grad_scale", "step"}
    return {
        key: value
        for key, value in vars(optimizer).items()
        if key not in shared and not key.startswith(("_optimizer_", "_opt_called", "_holdfast_"))
    }


class KeptState:
    """A copy of what can be reached from some objects.

    Args:
        roots: optimizers, and objects that wrap one.
    """

    def __init__(self, *roots: object) -> None:
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._grads: list[tuple[Tensor, Tensor | None]] = []
        # Containers and what they held; of objects, their dictionaries.
        self._held: list[tuple[Any, Any]] = []
        self._seen: set[int] = set()
        for root in roots:
            self._keep_object(root)

    def put_back(self) -> None:
        """Make everything what it was, in place."""
        for container, was in self._held:
            _refill(container, was)
        with torch.no_grad():
            for parameter, grad in self._grads:
                if parameter.grad is not grad:
                    parameter.grad = grad
            for tensor, was in self._tensors:
                # Not written where nothing changed: a graph may wait for it as it was.
                if not torch.equal(tensor, was):
                    tensor.copy_(was)

    def _keep(self, value: object) -> None:
        if isinstance(value, Tensor):
            if self._is_new(value):
                self._keep_tensor(value)
        elif isinstance(value, dict):
            held = cast(dict[Any, Any], value)
            if self._is_new(held):
                self._held.append((held, dict(held)))
                self._keep_all(held.keys())
                self._keep_all(held.values())
        elif isinstance(value, list | set | deque):
            some = cast(list[Any], value)
            if self._is_new(some):
                self._held.append((some, list(some)))
                self._keep_all(some)
        elif isinstance(value, tuple):
            self._keep_all(cast(tuple[Any, ...], value))
        elif isinstance(value, Optimizer):
            self._keep_object(value)

    def _keep_object(self, value: object) -> None:
        if self._is_new(value):
            own = own_attributes(value)
            self._held.append((value, own))
            self._keep_all(own.values())
            for name in ("param_groups", "state"):
                self._keep(vars(value).get(name))

    def _keep_all(self, values: Iterable[object]) -> None:
        for value in values:
            self._keep(value)

    def _keep_tensor(self, tensor: Tensor) -> None:
        part = local(tensor).detach()
        if part.layout is torch.strided:
            self._tensors.append((part, part.clone()))
        if tensor.is_leaf and tensor.requires_grad:
            self._grads.append((tensor, tensor.grad))
            if tensor.grad is not None:
                self._keep(tensor.grad)

    def _is_new(self, value: object) -> bool:
        new = id(value) not in self._seen
        self._seen.add(id(value))
        return new


def _refill(container: Any, was: Any) -> None:
    if isinstance(container, dict):
        _restore(cast(dict[Any, Any], container), was, cast(dict[Any, Any], container))
    elif isinstance(container, set):
        container.clear()
        container.update(was)
    elif isinstance(container, list | deque):
        if len(container) != len(was) or not all(map(operator.is_, container, was)):
            container.clear()
            container.extend(was)
    else:
        _restore(vars(container), was, own_attributes(container))


def _restore(now: dict[Any, Any], was: dict[Any, Any], own_part: dict[Any, Any]) -> None:
    for key in [key for key in own_part if key not in was]:
        del now[key]
    for key, value in was.items():
        if now.get(key, _GONE) is not value:
            now[key] = value

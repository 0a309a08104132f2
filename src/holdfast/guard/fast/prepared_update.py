"""The arithmetic of an optimizer's step on arguments that were collected once.

In every step torch walks over all parameters in Python to collect gradients and state, and hands
them through three functions, one of which groups them by device and dtype, to two or three kernels.
In a run that goes on as before only the gradients are others: the rest is collected here once, and
the same kernels, on a CPU the same function of torch, are called with it, to the same bits. Whether
something was replaced since is asked in every step, by identity; then torch's own step runs, and
the lists are collected anew.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from ...probes.presence import present
from .update_calls import KINDS, Group, OptimizerCalls, form_of

_PATIENCE = 10
"""Attempts in vain come after 0, 2, 6, 14 ... and at most 1,022 steps."""
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_CUDA = torch.backends.cuda.is_built()
_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing if _CUDA else bool

_grad_of: Callable[[Tensor], Any] = operator.attrgetter("grad")
_values: Callable[[dict[str, Tensor]], Iterable[Tensor]] = dict.values


class PreparedUpdate:
    """What the next steps of an optimizer are made of, while nothing is replaced.

    Args:
        optimizer: whose steps they are.
        kind: how it is called.
        groups: what its groups are updated by.
        device: of all its parameters.
    """

    __slots__ = ("_device", "_groups", "_held", "_options", "_partly", "_state", "used")

    def __init__(
        self,
        optimizer: Optimizer,
        kind: OptimizerCalls,
        groups: Sequence[Group],
        device: torch.device,
    ) -> None:
        self._options, self._groups = kind.options, groups
        # Whether some of its parameters have no gradients: frozen layers, heads nobody uses.
        self._partly = any(group.parameters is not group.own for group in groups)
        # Each parameter's own, and every tensor in them.
        self._state: tuple[Any, list[Any]] = optimizer.state, list(optimizer.state.values())
        self._held = list(chain.from_iterable(map(_values, self._state[1])))
        self._device = device
        self.used = False
        """Whether a step was made with it."""

    def run(self, optimizer: Any, read: list[Tensor] | None, more: Tensor | None = None) -> bool:
        """Update the parameters; False where that is torch's: then nothing was done.

        Args:
            optimizer: as it is now.
            read: the gradients that there are, from somebody who has just read them.
            more: 1 less its ``found_inf``, where that is known on the device.
        """
        groups, own, device = optimizer.param_groups, optimizer.__dict__, self._device
        found, scale = own.get("found_inf"), own.get("grad_scale")
        state, (kept, each), held = optimizer.state, self._state, self._held
        # Written out, and by what runs in C: this is done in every step.
        if (
            len(groups) != len(self._groups)
            or state is not kept
            or len(state) != len(each)
            or not all(map(operator.is_, state.values(), each))
            or sum(map(len, each)) != len(held)
            or not all(map(operator.is_, chain.from_iterable(map(_values, each)), held))
            or (found is not None and (type(found) is not Tensor or found.device != device))
            or (scale is not None and (type(scale) is not Tensor or scale.device != device))
        ):
            return False
        given: list[tuple[list[Tensor], float]] = []
        at = 0
        for group, known in zip(groups, self._groups, strict=True):
            parameters, rate = group["params"], group["lr"]
            count = len(known.own)
            if (
                type(rate) is not float
                or self._options(group) != known.options
                or len(parameters) != count
                or not all(map(operator.is_, parameters, known.own))
            ):
                return False
            if self._partly:
                there = present(list(map(_grad_of, parameters)), known.positions)
                if there is None:
                    return False
                grads = there
            elif read is None:
                grads = list(map(_grad_of, parameters))
            else:
                grads = read if count == len(read) else read[at : at + count]
                at += count
            if not all(map(operator.is_, map(type, grads), repeat(Tensor))):
                return False  # one has none, or it is of another kind
            given.append((grads, rate))
        if device.type == "cuda" and _capturing():
            return False
        self.used = True
        for known, (grads, rate) in zip(self._groups, given, strict=True):
            if grads:
                known.call(known, grads, rate, scale, found, more)
        return True


class PreparedSteps:
    """The steps of one optimizer: prepared where they can be, torch's own where not."""

    __slots__ = ("__weakref__", "_failures", "_wait", "grads", "left", "more", "update")

    def __init__(self) -> None:
        self.grads: list[Tensor] | None = None
        """Those that there are, while a step is at work and somebody has read them."""
        self.more: Tensor | None = None
        """By how much that step is counted, where a device knows it."""
        self.update: PreparedUpdate | None = None
        self.left = 1
        """Steps until somebody is to be asked whether a step is compared with torch's own."""
        # Steps until the next attempt: more after each one in vain.
        self._failures = self._wait = 0

    def drop(self) -> None:
        """Something was replaced."""
        if self.update is not None and self.update.used:
            self._failures = 0
        self.update = None

    def prepare(self, optimizer: Any) -> None:
        """After a step of torch's: prepare the next ones, where that is possible."""
        if self._wait:
            self._wait -= 1
            return
        self.update = _prepare(optimizer)
        self._failures = min(self._failures + 1, _PATIENCE)
        self._wait = 2**self._failures - 2

    def state_loaded(self, optimizer: Any) -> None:
        """The state was replaced: the old one would live on here until the next step."""
        self.drop()


STEPS: dict[int, weakref.ref[PreparedSteps]] = {}
"""By the identity of their optimizer, which alone keeps them alive."""


def steps_of(optimizer: Any) -> PreparedSteps:
    """What is prepared for an optimizer."""
    known = STEPS.get(id(optimizer))
    steps = None if known is None else known()
    if steps is None:
        steps = PreparedSteps()
        # Among its hooks nobody sees them, no copy takes them along, and they end with it.
        optimizer.register_load_state_dict_post_hook(steps.state_loaded)
        STEPS[id(optimizer)] = weakref.ref(steps)
    return steps


def _prepare(optimizer: Any) -> PreparedUpdate | None:
    kind = KINDS.get(type(optimizer))
    if kind is None or "_init_group" in optimizer.__dict__:
        return None
    groups: list[Group] = []
    devices: set[torch.device] = set()
    for group in optimizer.param_groups:
        own: list[Tensor] = list(group["params"])
        positions = [at for at, parameter in enumerate(own) if parameter.grad is not None]
        parameters = own if len(positions) == len(own) else [own[at] for at in positions]
        if not own or not all(map(_plain, parameters)):
            return None
        device = (parameters or own)[0].device
        call, options = kind.calls.get(form_of(group, device)), kind.options(group)
        if call is None or group["differentiable"] or group.get("capturable"):
            return None
        if any(isinstance(value, Tensor) for value in _flat(options)):
            return None
        if len({(p.dtype, p.device) for p in parameters}) > 1:
            return None
        names = kind.state(group)
        each = [optimizer.state.get(parameter) or {} for parameter in parameters]
        if any(type(held.get(name)) is not Tensor for held in each for name in names):
            return None
        lists = [[held[name] for held in each] for name in names]
        known = Group(call, own, positions, parameters, lists, options, kind.named(group))
        groups.append(known)
        devices.add(device)
    if len(devices) != 1 or any(type(held) is not dict for held in optimizer.state.values()):
        return None
    return PreparedUpdate(optimizer, kind, groups, devices.pop())


def _plain(parameter: Tensor) -> bool:
    grad = parameter.grad
    if type(parameter) not in (Parameter, Tensor) or type(grad) is not Tensor:
        return False
    return parameter.dtype in _DTYPES and grad.layout is torch.strided


def _flat(options: tuple[Any, ...]) -> Iterable[Any]:
    for value in options:
        yield from value if isinstance(value, tuple | list) else (value,)

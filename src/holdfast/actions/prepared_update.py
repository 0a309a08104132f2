"""The arithmetic of a fused optimizer's step on arguments that were collected once.

In every step torch walks over all parameters in Python to collect gradients and state, groups them
by device and dtype, and hands them through three functions to two or three kernels. In a run that
goes on as before only the gradients are others: the rest is collected here once, and the same
kernels are called with it in the same order, to the same bits. Whether something was replaced since
is asked in every step, by identity; then torch's own step runs, and the lists are collected anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

# Those whose steps were read and are compared by tests, to the bit.
_KNOWN = "2.11" <= TorchVersion(torch.__version__) < "2.14"
STEPS = "_holdfast_steps"
"""The name under which an optimizer keeps its own."""
_PATIENCE = 10
"""Attempts in vain come after 0, 2, 6, 14 ... and at most 1,022 steps."""
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_CUDA = torch.backends.cuda.is_built()
_capturing: Callable[[], bool] = torch._C._cuda_isCurrentStreamCapturing if _CUDA else bool

grad_of: Callable[[Tensor], Any] = operator.attrgetter("grad")
_values: Callable[[dict[str, Tensor]], Iterable[Tensor]] = dict.values


class _Group(NamedTuple):
    """What one group of parameters gives its kernel."""

    parameters: Sequence[Tensor]
    lists: Sequence[list[Tensor]]
    """Of its state, in the order of ``_Kind.state``."""
    options: tuple[Any, ...]
    """What was asked for by ``_Kind.options``, but for the learning rate."""
    named: dict[str, Any]
    """The same as arguments of the kernel."""


class _Kind(NamedTuple):
    """How one class of optimizers is called."""

    options: Callable[[dict[str, Any]], tuple[Any, ...]]
    """Everything in a group that decides about the arithmetic, but for the learning rate."""
    state: Callable[[dict[str, Any]], Sequence[str]]
    """The names of the state of each parameter."""
    named: Callable[[Any, dict[str, Any]], dict[str, Any]]
    """The arguments of the kernel that stay."""
    call: Callable[[_Group, list[Tensor], float, Tensor | None, Tensor | None], None]


def _adam_state(group: dict[str, Any]) -> Sequence[str]:
    most = ("max_exp_avg_sq",) if group["amsgrad"] else ()
    return ("step", "exp_avg", "exp_avg_sq", *most)


def _adam_named(optimizer: Any, group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    same = ("amsgrad", "weight_decay", "eps", "maximize")
    return {"beta1": beta1, "beta2": beta2} | {name: group[name] for name in same}


def _adam(
    group: _Group, grads: list[Tensor], lr: float, scale: Tensor | None, found: Tensor | None
) -> None:
    steps, averages, squares, *most = group.lists
    torch._foreach_add_(steps, 1)
    kernel = torch._fused_adamw_ if group.options[-1] else torch._fused_adam_
    kernel(
        *(group.parameters, grads, averages, squares, most[0] if most else [], steps),
        lr=lr,
        grad_scale=scale,
        found_inf=found,
        **group.named,
    )
    if found is not None:
        torch._foreach_sub_(steps, [found] * len(steps))


def _sgd_state(group: dict[str, Any]) -> Sequence[str]:
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _sgd_named(optimizer: Any, group: dict[str, Any]) -> dict[str, Any]:
    same = ("weight_decay", "momentum", "dampening", "nesterov", "maximize")
    return {name: group[name] for name in same}


def _sgd(
    group: _Group, grads: list[Tensor], lr: float, scale: Tensor | None, found: Tensor | None
) -> None:
    torch._fused_sgd_(
        *(group.parameters, grads, group.lists[0] if group.lists else []),
        lr=lr,
        is_first_step=False,
        grad_scale=scale,
        found_inf=found,
        **group.named,
    )


_FORM = ("fused", "foreach", "differentiable")
_ADAM = _Kind(
    operator.itemgetter(
        *_FORM,
        *("capturable", "betas", "amsgrad", "weight_decay", "eps", "maximize"),
        "decoupled_weight_decay",
    ),
    _adam_state,
    _adam_named,
    _adam,
)
_SGD = _Kind(
    operator.itemgetter(*_FORM, "weight_decay", "momentum", "dampening", "nesterov", "maximize"),
    _sgd_state,
    _sgd_named,
    _sgd,
)
_KINDS = {torch.optim.Adam: _ADAM, torch.optim.AdamW: _ADAM, torch.optim.SGD: _SGD}


class PreparedUpdate:
    """What the next steps of an optimizer are made of, while nothing is replaced.

    Args:
        optimizer: whose steps they are.
        kind: how it is called.
        groups: what its groups give the kernel.
        device: of all its parameters.
    """

    __slots__ = ("_call", "_device", "_groups", "_held", "_options", "_state", "used")

    def __init__(
        self, optimizer: Optimizer, kind: _Kind, groups: Sequence[_Group], device: torch.device
    ) -> None:
        self._options, self._call, self._groups = kind.options, kind.call, groups
        # Each parameter's own, and every tensor in them.
        self._state: tuple[Any, list[Any]] = optimizer.state, list(optimizer.state.values())
        self._held = list(chain.from_iterable(map(_values, self._state[1])))
        self._device = device
        self.used = False
        """Whether a step was made with it."""

    def run(self, optimizer: Any, read: list[Tensor] | None) -> bool:
        """Update the parameters; False where that is torch's: then nothing was done.

        ``read``: the gradients of all of them, from somebody who has just read them.
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
            count = len(known.parameters)
            if (
                type(rate) is not float
                or self._options(group) != known.options
                or len(parameters) != count
                or not all(map(operator.is_, parameters, known.parameters))
            ):
                return False
            if read is None:
                grads = list(map(grad_of, parameters))
            else:
                grads = read if count == len(read) else read[at : at + count]
                at += count
            if not all(map(operator.is_, map(type, grads), repeat(Tensor))):
                return False  # one has none, or it is of another kind
            given.append((grads, rate))
        if device.type == "cuda" and _capturing():
            return False
        call, self.used = self._call, True
        for known, (grads, rate) in zip(self._groups, given, strict=True):
            call(known, grads, rate, scale, found)
        return True


class PreparedSteps:
    """The steps of one optimizer: prepared where they can be, torch's own where not."""

    __slots__ = ("_failures", "_wait", "grads", "update")

    def __init__(self) -> None:
        self.grads: list[Tensor] | None = None
        """Of all parameters, while a step is at work whose gradients somebody has read."""
        self.update: PreparedUpdate | None = None
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


def steps_of(optimizer: Any) -> PreparedSteps:
    """What is prepared for an optimizer, which keeps it: both go together."""
    steps: PreparedSteps | None = optimizer.__dict__.get(STEPS)
    if steps is None:
        steps = optimizer.__dict__[STEPS] = PreparedSteps()
        # What it holds would outlive a state that is replaced.
        optimizer.register_load_state_dict_post_hook(_forget)
    return steps


def _forget(optimizer: Any) -> None:
    steps_of(optimizer).drop()


def _prepare(optimizer: Any) -> PreparedUpdate | None:
    kind = _KINDS.get(type(optimizer)) if _KNOWN else None
    if kind is None or "_init_group" in optimizer.__dict__:
        return None
    groups: list[_Group] = []
    devices: set[torch.device] = set()
    for group in optimizer.param_groups:
        parameters: list[Tensor] = list(group["params"])
        options = kind.options(group)
        if not group["fused"] or group["differentiable"] or group.get("capturable"):
            return None
        if any(isinstance(value, Tensor) for value in _flat(options)):
            return None
        if not parameters or not all(map(_plain, parameters)):
            return None
        if len({(p.dtype, p.device) for p in parameters}) != 1:
            return None
        names = kind.state(group)
        each = [optimizer.state.get(parameter) or {} for parameter in parameters]
        if any(type(held.get(name)) is not Tensor for held in each for name in names):
            return None
        lists = [[held[name] for held in each] for name in names]
        groups.append(_Group(parameters, lists, options, kind.named(optimizer, group)))
        devices.add(parameters[0].device)
    if len(devices) != 1:
        return None
    if any(type(held) is not dict for held in optimizer.state.values()):
        return None
    return PreparedUpdate(optimizer, kind, groups, devices.pop())


def _plain(parameter: Tensor) -> bool:
    kind = type(parameter) in (Parameter, Tensor) and type(parameter.grad) is Tensor
    return kind and parameter.dtype in _DTYPES and parameter.grad.layout is torch.strided


def _flat(options: tuple[Any, ...]) -> Iterable[Any]:
    for value in options:
        yield from value if isinstance(value, tuple | list) else (value,)

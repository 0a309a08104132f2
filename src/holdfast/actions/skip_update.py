"""Skip a bad optimizer step, exactly.

Three ways, chosen by where the decision is known and what the optimizer can do:

- ``HideGradients``: the host knows the step is bad. Every gradient is hidden during ``step()``,
  which torch's own optimizers treat as "nothing to do": no state is created, nothing moves. Others
  are not called at all (``foreign_step``).
- ``RaiseFoundInf``: the decision is a device tensor and the kernel is fused. The kernels of
  Adam, AdamW, SGD and Adagrad read ``optimizer.found_inf`` and change nothing when
  it is exactly 1.0.
- ``StepSnapshot``: the decision is a device tensor and the optimizer has no fused form. Weights and
  state are copied before the step and put back after it by one kernel that does nothing on a
  good step, and so is what a class of the script keeps on itself. Of what is spread over ranks each
  rank copies its part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..shards import local
from ._kept_state import is_foreign, own_attributes
from ._restore_kernel import Restorer

_MISSING = object()


class HideGradients:
    """Hide every gradient for the length of one ``step()``."""

    def __init__(self) -> None:
        self._hidden: list[tuple[Tensor, Tensor]] = []
        self._groups: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def before(self, optimizer: Optimizer) -> None:
        """Hide the gradients; save counters kept in the groups."""
        for group in optimizer.param_groups:
            # Some optimizers count steps in the group itself, whether or not a gradient came.
            kept = {
                k: v.clone() if isinstance(v, Tensor) else v
                for k, v in group.items()
                # Within a closure a group says how its step runs, which it does not afterwards.
                if k not in ("params", "foreach")
            }
            self._groups.append((group, kept))
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._hidden.append((parameter, parameter.grad))
                    parameter.grad = None

    def after(self) -> None:
        """Restore gradients and counters."""
        hidden, self._hidden = self._hidden, []
        for parameter, grad in hidden:
            parameter.grad = grad
        groups, self._groups = self._groups, []
        for group, kept in groups:
            for key, value in kept.items():
                now = group.get(key)
                if isinstance(value, Tensor) and isinstance(now, Tensor):
                    now.copy_(value)
                elif now is not value:
                    group[key] = value


class RaiseFoundInf:
    """Let the fused kernel skip by itself."""

    def __init__(self) -> None:
        self._scaler: Any = _MISSING
        self._armed = False

    def before(self, optimizer: Any, flag: Tensor, united: Tensor | None = None) -> None:
        """Set ``found_inf``; combined with a GradScaler's own, never overwriting it.

        ``united`` is both in one, where a kernel has made it along.
        """
        self._scaler = optimizer.__dict__.get("found_inf", _MISSING)
        if united is not None:
            optimizer.found_inf = united
        elif isinstance(self._scaler, Tensor):
            # A scaler sums over devices, and a fused kernel takes 2.0 for "go on".
            theirs = self._scaler.to(flag.device, non_blocking=True)
            optimizer.found_inf = torch.maximum(flag, theirs).clamp_(max=1.0).reshape(())
        else:
            optimizer.found_inf = flag
        if "grad_scale" not in optimizer.__dict__:
            optimizer.grad_scale = None
        self._armed = True

    def after(self, optimizer: Any) -> None:
        """Restore the ``found_inf`` that a scaler expects, or remove it."""
        if not self._armed:
            return
        self._armed = False
        if self._scaler is _MISSING:
            optimizer.__dict__.pop("found_inf", None)
            optimizer.__dict__.pop("grad_scale", None)
        else:
            optimizer.found_inf = self._scaler
        self._scaler = _MISSING


Place = tuple[Any, Any]  # the container that holds a counter, and its key


class _Plan:
    """Everything that one optimizer may change in a step, cached while it is valid."""

    def __init__(self, optimizer: Optimizer, device: torch.device, *, foreign: bool) -> None:
        self.live: list[Tensor] = []
        self.counters: list[Place] = []
        self.flat = True
        for group in optimizer.param_groups:
            self._add_all(group, device)
            for parameter in group["params"]:
                self._add(parameter, None, None, device)
                self._add_all(optimizer.state.get(parameter) or {}, device)
        if foreign:
            self._add_own(optimizer, device)
        self.signature = signature(optimizer, foreign=foreign)

    def _add_own(self, optimizer: Optimizer, device: torch.device) -> None:
        """What a class of the script keeps on itself: slow weights, numbers that it counts."""
        known = {t.data_ptr() for t in self.live}
        for name, value in own_attributes(optimizer).items():
            if type(value) in (int, float):
                self.counters.append((vars(optimizer), name))
            for tensor in _tensors_in(value):
                if tensor.device.type == device.type and tensor.data_ptr() not in known:
                    self.live.append(local(tensor).detach())

    def _add_all(self, holder: Any, device: torch.device) -> None:
        items = holder.items() if isinstance(holder, dict) else enumerate(holder)
        for key, value in items:
            if key != "params":
                self._add(value, holder, key, device)

    def _add(self, value: Any, holder: Any, key: Any, device: torch.device) -> None:
        if isinstance(value, Tensor):
            if value.device.type == device.type:
                self.live.append(local(value).detach())
            elif value.numel() == 1 and holder is not None:
                # A step counter that lives on the host cannot follow a device decision.
                self.counters.append((holder, key))
        elif isinstance(value, int | float) and not isinstance(value, bool) and holder is not None:
            self.counters.append((holder, key))
        elif isinstance(value, dict | list):
            self.flat = False
            self._add_all(value, device)
        elif isinstance(value, tuple) and any(isinstance(v, Tensor) for v in value):
            self.flat = False
            for inner in value:
                self._add(inner, None, None, device)

    def read(self) -> list[float]:
        """The counters as they are now; 0 for one that is none any more."""
        return [_number(holder, key) for holder, key in self.counters]


def _number(holder: Any, key: Any) -> float:
    value = holder.get(key) if isinstance(holder, dict) else holder[key]
    return float(value) if isinstance(value, Tensor | int | float) else 0.0


def _tensors_in(value: object) -> Iterator[Tensor]:
    """Tensors in lists and dictionaries; other optimizers look after their own."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _tensors_in(inner)
    elif isinstance(value, list | tuple | deque):
        for inner in value:
            yield from _tensors_in(inner)


def signature(optimizer: Optimizer, *, foreign: bool) -> list[int]:
    """Changes when a tensor of the optimizer is replaced or state appears."""
    ids: list[int] = []
    state = optimizer.state
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            ids.append(id(parameter))
            held = state.get(parameter)
            if held:
                ids += [id(v) for v in held.values() if isinstance(v, Tensor)]
    if foreign:
        ids += map(id, _tensors_in(own_attributes(optimizer)))
    return ids


class StepSnapshot:
    """Copies of weights and optimizer state, and the kernel that puts them back."""

    def __init__(self) -> None:
        self._plan: _Plan | None = None
        self._copies: list[Tensor] = []
        self._before: list[float] = []
        self._restorer = Restorer()
        self._foreign: bool | None = None

    def before(self, optimizer: Optimizer, device: torch.device) -> None:
        """Copy everything the step may change."""
        if self._foreign is None:
            self._foreign = is_foreign(type(optimizer))
        plan = self._plan
        if not self._holds(plan, optimizer):
            plan = self._plan = _Plan(optimizer, device, foreign=self._foreign)
            if len(self._copies) != len(plan.live) or not all(map(_alike, self._copies, plan.live)):
                self._copies = [torch.empty_like(t) for t in plan.live]
        if plan.live:
            torch._foreach_copy_(self._copies, plan.live)
        self._before = plan.read()

    def after(self, optimizer: Optimizer, flag: Tensor) -> list[tuple[Place, float]]:
        """Put everything back where the flag is 1.

        Returns the host counters that moved and by how much: the caller takes them back once
        the flag has reached the host.
        """
        plan = self._plan
        if plan is None:
            return []
        live = plan.live
        if not self._holds(plan, optimizer):
            # The step replaced tensors of its state: what is there now goes back.
            now = _Plan(optimizer, flag.device, foreign=bool(self._foreign))
            if len(now.live) == len(live) and all(map(_alike, self._copies, now.live)):
                live = now.live
        self._restorer.restore(list(zip(live, self._copies, strict=True)), flag)
        moved = [a - b for a, b in zip(plan.read(), self._before, strict=True)]
        return [(place, by) for place, by in zip(plan.counters, moved, strict=True) if by]

    def _holds(self, plan: _Plan | None, optimizer: Optimizer) -> TypeGuard[_Plan]:
        """Whether a plan is about the tensors that the optimizer has now."""
        if plan is None or not plan.flat:
            return False
        return plan.signature == signature(optimizer, foreign=bool(self._foreign))

    @staticmethod
    def take_back(moved: Sequence[tuple[Place, float]]) -> None:
        """Undo host counters of a step that turned out to have been skipped."""
        for (holder, key), by in moved:
            value = holder[key]
            if isinstance(value, Tensor):
                value.sub_(by)
            else:
                holder[key] = value - int(by) if isinstance(value, int) else value - by


def _alike(copy: Tensor, value: Tensor) -> bool:
    return (
        copy.shape == value.shape
        and copy.dtype == value.dtype
        and copy.device == value.device
        and copy.stride() == value.stride()
    )

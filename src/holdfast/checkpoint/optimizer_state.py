"""The state of an optimizer, put back without the casts of ``Optimizer.load_state_dict``.

That one turns fp32 moments of bf16 weights into bf16 and replaces every tensor. Here they keep
their dtype and, where they exist, their memory. How a step is computed (fused, foreach,
capturable) is no state: an optimizer comes back in the form it has live.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import CheckpointError
from .compare import Form
from .object_state import (
    NOT_SAVED,
    Copies,
    Notes,
    plain,
    restored,
)

_FORM = ("fused", "foreach", "capturable", "differentiable")
# Numbers that stand on the host or beside the parameter, as the form of the optimizer wants it.
_COUNTERS = ("step", "mu_product", "eta", "mu")


def state(optimizer: Optimizer, where: str, notes: Notes) -> dict[str, Any]:
    """Moments and groups by the number of the parameter; tensors live and detached.

    ``host`` names what stands on the host although its parameter does not: a checkpoint is read
    on the host and would not know.
    """
    parameters = _parameters(optimizer)
    entry: dict[str, Any] = {"parameters": _listed(parameters, notes.names)}
    if _has_its_own_way(optimizer):
        entry["own"] = plain(optimizer.state_dict(), where, notes.not_saved)
        return entry
    numbers = {id(p): number for number, p in enumerate(parameters)}
    found: dict[Any, Any] = {}
    host: set[str] = set()
    for key, value in optimizer.state.items():
        number = numbers.get(id(key)) if isinstance(key, Tensor) else key
        if number is None:
            continue  # of a parameter the optimizer has given up
        held = found[number] = plain(value, f"{where}.{number}", notes.not_saved)
        if isinstance(key, Tensor) and not key.is_cpu and isinstance(held, dict):
            host |= {k for k, v in held.items() if isinstance(v, Tensor) and v.is_cpu}
    entry["state"] = {key: value for key, value in found.items() if value is not NOT_SAVED}
    entry["host"] = sorted(host)
    entry["sizes"] = [len(group["params"]) for group in optimizer.param_groups]
    entry["groups"] = [
        plain({k: v for k, v in group.items() if k != "params"}, where, notes.not_saved)
        for group in optimizer.param_groups
    ]
    return entry


def put_back(optimizer: Optimizer, saved: Mapping[str, Any], copies: Copies) -> None:
    """Put moments and groups back; what the saved state does not know is removed."""
    if "own" in saved:
        optimizer.load_state_dict(restored(optimizer.state_dict(), saved["own"]))
        return
    held: dict[Any, Any] = saved["state"]
    everything: Any = optimizer.state  # some keep text keys among the parameters
    for key in [key for key in everything if not isinstance(key, Tensor) and key not in held]:
        del everything[key]
    number = 0
    for group, before in zip(optimizer.param_groups, saved["groups"], strict=True):
        for parameter in group["params"]:
            if number in held:
                devices = _Devices(parameter.device, group, before, saved["host"])
                _put(optimizer, parameter, held[number], devices, copies)
            else:
                optimizer.state.pop(parameter, None)
            number += 1
        device = group["params"][0].device if group["params"] else torch.device("cpu")
        for key, value in before.items():
            if key not in _FORM:
                group[key] = copies.fill(group.get(key), value, device)
    for key, value in held.items():
        if not isinstance(key, int):
            everything[key] = copies.fill(everything.get(key), value, torch.device("cpu"))


class _Devices:
    """Where new state of one parameter belongs."""

    def __init__(
        self,
        own: torch.device,
        live: Mapping[str, Any],
        saved: Mapping[str, Any],
        host: Iterable[str],
    ) -> None:
        self._own = own
        self._live, self._saved = _on_device(live), _on_device(saved)
        self._host = host

    def of(self, key: str) -> torch.device:
        """The device for a value that has no live tensor to go into."""
        if key in _COUNTERS and self._live != self._saved:
            return self._own if self._live else torch.device("cpu")
        return torch.device("cpu") if key in self._host else self._own


def _on_device(group: Mapping[str, Any]) -> bool:
    return bool(group.get("fused") or group.get("capturable"))


def _put(
    optimizer: Optimizer, parameter: Tensor, saved: Any, devices: _Devices, copies: Copies
) -> None:
    live = optimizer.state.get(parameter)
    if not isinstance(saved, Mapping) or not (live is None or isinstance(live, dict)):
        optimizer.state[parameter] = copies.fill(live, saved, parameter.device)
        return
    inner = optimizer.state[parameter] = {} if live is None else live
    copies.forget(inner, saved)
    for key, value in saved.items():
        inner[key] = copies.fill(inner.get(key), value, devices.of(key))


def gradients(optimizer: Optimizer) -> dict[int, Tensor]:
    """The gradients there are, by the number of the parameter."""
    grads = ((number, p.grad) for number, p in enumerate(_parameters(optimizer)))
    return {number: grad.detach() for number, grad in grads if grad is not None}


def put_back_gradients(optimizer: Optimizer, saved: Mapping[int, Tensor], copies: Copies) -> None:
    """Put gradients back; a parameter without a saved one has none."""
    for number, parameter in enumerate(_parameters(optimizer)):
        grad = saved.get(number)
        live = parameter.grad
        parameter.grad = None if grad is None else copies.into(live, grad, parameter.device)


def forms(entry: Mapping[str, Any], number: int) -> dict[str, Form]:
    """Parameters of a saved optimizer, for a comparison: the same ones in the same order."""
    return {
        f"optimizers.{number}.{i} ({name})" if name else f"optimizers.{number}.{i}": (dtype, shape)
        for i, (name, dtype, shape) in enumerate(entry["parameters"])
    }


def check(optimizer: Optimizer, saved: Mapping[str, Any], where: str) -> None:
    """Refuse what no comparison of tensors shows: other groups, another kind of optimizer."""
    if ("own" in saved) != _has_its_own_way(optimizer):
        raise CheckpointError(
            f"the saved state is of another kind of optimizer than {type(optimizer).__name__}, in "
            f"{where}; resume with the optimizer it was saved from"
        )
    live, then = len(optimizer.param_groups), len(saved.get("groups", optimizer.param_groups))
    if live != then:
        raise CheckpointError(
            f"{then} parameter groups were saved, {type(optimizer).__name__} has {live}, in "
            f"{where}; make the optimizer with the same groups before resuming"
        )


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _listed(parameters: Sequence[Tensor], names: Mapping[int, str]) -> list[list[Any]]:
    return [[names.get(id(p), ""), p.dtype, p.shape] for p in parameters]


def _has_its_own_way(optimizer: Optimizer) -> bool:
    kind = type(optimizer)
    return (
        kind.load_state_dict is not Optimizer.load_state_dict
        or kind.state_dict is not Optimizer.state_dict
    )

"""The state of a module: parameters, buffers and what it calls its extra state.

More than ``state_dict``: buffers that are not persistent are part of what the next step computes.
Less than it, too: what stands in several places (tied weights) is there once, and the wrappers of
``torch.compile`` and ``DistributedDataParallel`` leave no trace in the names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .object_state import (
    NOT_SAVED,
    Copies,
    Notes,
    plain,
    restored,
)

_EXTRA = "_extra_state"


@dataclass(frozen=True, slots=True)
class _Place:
    """One value of a module: where it stands and under which name it is saved."""

    module: nn.Module
    key: str
    name: str
    value: Any


def state(model: nn.Module, where: str, notes: Notes) -> dict[str, Any]:
    """Every value by its name; tensors live and detached. Tensors taken before are not again."""
    found: dict[str, Any] = {}
    for place in _places(model, where, notes.names, notes.tied):
        name = f"{where}.{place.name}"
        held = place.module.get_extra_state() if place.key == _EXTRA else place.value
        value = plain(held, name, notes.not_saved)
        if value is not NOT_SAVED:
            found[place.name] = value
        if place.key == _EXTRA or place.key in place.module._non_persistent_buffers_set:
            notes.loose.add(name)
    return found


def put_back(
    model: nn.Module, saved: Mapping[str, Any], names: dict[int, str], copies: Copies
) -> None:
    """Put saved values in their places; those with no saved value stay as they are."""
    for place in list(_places(model, "", names)):
        if place.name not in saved:
            continue
        module, key, value = place.module, place.key, saved[place.name]
        if key == _EXTRA:
            module.set_extra_state(restored(module.get_extra_state(), value))
        elif key in module._buffers:
            device = _device(module, model)
            module._buffers[key] = copies.fill(place.value, value, device)
        else:
            _put_parameter(place.value, value, copies)


def buffers_in(model: nn.Module) -> list[tuple[str, Tensor]]:
    """The buffers there are, by the names they have in a state."""
    return [
        (place.name, place.value)
        for place in _places(model, "", {})
        if place.key in place.module._buffers and place.value is not None
    ]


@torch.no_grad()
def _put_parameter(parameter: Tensor, saved: Tensor, copies: Copies) -> None:
    placed = copies.into(parameter, saved, parameter.device)
    if placed is not parameter:
        # The object stays: optimizers and hooks know it.
        parameter.data = placed


def _places(
    model: nn.Module, where: str, names: dict[int, str], tied: dict[str, str] | None = None
) -> Iterator[_Place]:
    walked: list[tuple[str, nn.Module]] = []
    for path, module in unwrapped(model).named_modules():
        prefix = _clean(path) if path else ""
        walked.append((prefix, module))
        for key, value in [*module._parameters.items(), *module._buffers.items()]:
            if value is None and key not in module._buffers:
                continue  # a layer without a bias
            if value is not None:
                if id(value) in names and tied is not None:
                    tied[f"{where}.{prefix}{key}"] = names[id(value)]
                if id(value) in names or nn.parameter.is_lazy(value):
                    continue
                names[id(value)] = f"{where}.{prefix}{key}"
            yield _Place(module, key, prefix + key, value)
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield _Place(module, _EXTRA, prefix + _EXTRA, None)
    if tied is not None:
        _note_shared(walked, where, tied)


def _note_shared(walked: list[tuple[str, nn.Module]], where: str, tied: dict[str, str]) -> None:
    """Note the further names of modules that stand in several places: each is walked once."""
    names = {id(module): prefix for prefix, module in walked}
    for prefix, module in walked:
        for key, child in module._modules.items():
            first, name = names.get(id(child), ""), prefix + key
            # A module that holds itself has no end of names.
            if child is not None and name + "." != first and not name.startswith(first):
                tied[f"{where}.{name}"] = f"{where}.{first}".removesuffix(".")


def unwrapped(model: nn.Module) -> nn.Module:
    """The module the user wrote, inside what torch has put around it."""
    while True:
        if isinstance(model, DistributedDataParallel | DataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def _clean(path: str) -> str:
    return f"{path}.".replace("_orig_mod.", "")


def _device(module: nn.Module, model: nn.Module) -> torch.device:
    """Where a new buffer belongs: beside the other tensors of its module, or of the model."""
    for one in (module, model):
        for tensor in [*one.parameters(), *one.buffers()]:
            return tensor.device
    return torch.device("cpu")

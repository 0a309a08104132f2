"""Puts taken values back into objects that a resumed script has made: attributes, cells, groups.

An object keeps its identity, so that whoever else holds it sees the same.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...source.ownership import kind_of
from ..refusal import RefusedError
from . import admitted, generators
from .digests import tensor_digest
from .nodes import KIND, MISSING, SCALARS, Node, class_name, of_user, shown
from .objects import cells

Value = Callable[[Any, Node, str], Any]
"""The value of a node, made of the live one where that can be."""
NOT_PUT_BACK = ("fused", "foreach", "capturable", "params")
"""What an optimizer keeps as it is: how a step is computed is no state."""
_LOADER = (
    *("dataset", "sampler", "batch_sampler", "generator", "collate_fn", "batch_size"),
    "_iterator",
)
_PARTS: tuple[tuple[Any, frozenset[str]], ...] = (
    (
        (types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType),
        frozenset(("__self__",)),
    ),
    (functools.partial, frozenset(("func", "args", "keywords"))),
    (
        DataLoader,
        frozenset(
            (
                "dataset",
                "sampler",
                "batch_sampler",
                "generator",
                "collate_fn",
                "batch_size",
                "_iterator",
            )
        ),
    ),
)


def fill_object(target: Any, node: Node, path: str, value: Value) -> None:
    """Give an object its attributes, and its items where its class is made from a list or dict."""
    own = _own(target)
    for name, item in node["a"]:
        place = admitted.slot(type(target), name)
        old = own.get(name, MISSING) if place is None and own is not None else MISSING
        if place is not None:
            try:
                old = place.__get__(target)
            except AttributeError:
                old = MISSING
        new = value(old, item, f"{path}.{name}")
        if new is old:
            continue
        admitted.check_attribute(target, name, path)
        if place is not None:
            place.__set__(target, new)
        elif own is not None:
            own[name] = new
        else:
            raise RefusedError(f"{shown(path)} has no attribute {name} in the resumed run")
    if own is not None and "few" not in node:
        kept = {name for name, _ in node["a"]}
        for name in [name for name in own if name not in kept]:
            del own[name]
    if "i" in node:
        _fill_items(target, node["i"], path, value)


def _own(target: Any) -> dict[str, Any] | None:
    try:
        return object.__getattribute__(target, "__dict__")
    except AttributeError:
        return None


def _fill_items(target: Any, node: Node, path: str, value: Value) -> None:
    # Past the methods of its class, which may be the user's own.
    base: Any = admitted.base_of(type(target))
    if base is list:
        items = value(list(list.__iter__(target)), node, f"{path}[:]")
        list.clear(target)
        list.extend(target, items)
        return
    if base is object:
        raise RefusedError(f"{shown(path)} holds no items in the resumed run")
    pairs: dict[Any, Any] = value(dict(base.items(target)), node, f"{path}[:]")
    base.clear(target)
    for key, one in dict.items(pairs):
        base.__setitem__(target, key, one)


def fill_module(live: nn.Module, node: Node, path: str, value: Value) -> dict[str, Tensor]:
    """Give a module its attributes and tensors; what tensors were met, by their paths."""
    met: dict[str, Tensor] = {}
    _fill_attributes(live, node["a"], path, value)
    for name, wants, saved in node["p"]:
        parameter = live._parameters.get(name)
        if parameter is None:
            raise RefusedError(f"{shown(path)} has no parameter {name} in the resumed run")
        met[f"{path}.{name}"] = parameter
        _fill_tensor(parameter, saved, f"{path}.{name}")
        parameter.requires_grad_(wants)
    for name, saved in node["b"]:
        buffer = live._buffers.get(name)
        if buffer is not None:
            met[f"{path}.{name}"] = buffer
            _fill_tensor(buffer, saved, f"{path}.{name}")
        elif isinstance(saved, Mapping):
            admitted.check_attribute(live, name, path)
            live._buffers[name] = _tensor(value(MISSING, saved, f"{path}.{name}"))
    for name, child in node["k"]:
        held = live._modules.get(name)
        if held is None or value(held, child, f"{path}.{name}") is not held:
            raise RefusedError(f"{shown(path)} has no module {name} in the resumed run")
    return met


def _fill_attributes(live: Any, items: Any, path: str, value: Value) -> None:
    own = vars(live)
    for name, item in items:
        if isinstance(item, Mapping) and admitted.is_of_torch(live, name):
            admitted.check_attribute(live, name, path)
        old = own.get(name, MISSING)
        new = value(old, item, f"{path}.{name}")
        if new is old:
            continue
        admitted.check_attribute(live, name, path)
        if callable(new) and not isinstance(new, nn.Module):
            raise RefusedError(f"{shown(path)}.{name} is called in the resumed run, not set")
        own[name] = new


def _tensor(made: Any) -> Tensor:
    if not isinstance(made, Tensor):
        raise TypeError("a buffer is a tensor")
    return made


def _fill_tensor(tensor: Tensor, saved: Any, path: str) -> None:
    if saved is None:
        return
    if saved[KIND] == "made":
        if saved["h"] and tensor_digest(tensor) != saved["h"]:
            raise RefusedError(f"the script makes {shown(path)} with other values each time")
        return
    held = _tensor(saved["v"]) if saved[KIND] == "tensor" else from_bytes(saved)
    if tensor.shape != held.shape or tensor.dtype != held.dtype:
        raise RefusedError(f"{shown(path)} has another shape in the resumed run")
    tensor.copy_(held)


def fill_optimizer(live: Any, node: Node, path: str, value: Value) -> None:
    """Give an optimizer its settings; its state is saved with the models."""
    if not isinstance(live, Optimizer) or len(live.param_groups) != len(node["v"]):
        raise RefusedError(f"{shown(path)} has other parameter groups in the resumed run")
    for group, saved in zip(live.param_groups, node["v"], strict=True):
        for key, one in saved:
            if type(one) not in (float, int, bool) or not isinstance(key, str):
                raise TypeError(f"{key} of a parameter group is a number")
            if key not in NOT_PUT_BACK:
                group[key] = one
    _fill_attributes(live, node.get("a", ()), path, value)


def fill_parts(live: Any, node: Node, path: str, value: Value) -> None:
    """Give a loader, a method or a partial function what it holds."""
    known = next((names for kind, names in _PARTS if isinstance(live, kind)), frozenset[str]())
    for name, item in node["a"]:
        if name not in known:
            raise RefusedError(f"{shown(path)} has no part {name} in the resumed run")
        held = (
            vars(live).get(name, MISSING) if isinstance(live, DataLoader) else getattr(live, name)
        )
        made = value(held, item, path if name == "__self__" else f"{path}.{name}")
        if name == "batch_size" and type(made) is int and isinstance(live, DataLoader):
            vars(live)[name] = made  # its batch_sampler counts
            continue
        if not _stays(held, made):
            raise RefusedError(f"{shown(path)} holds another object in the resumed run")


def _stays(held: Any, made: Any) -> bool:
    """Whether what a part holds is what it should hold: it cannot be given another object."""
    if type(held) is tuple and type(made) is tuple and len(held) == len(made):
        return all(map(_stays, held, made))
    return made is held or (type(held) in SCALARS and type(made) is type(held) and made == held)


def fill_function(live: Any, node: Node, path: str, value: Value) -> None:
    """Give a function of the script's own its cells, defaults and attributes."""
    if type(live) is not types.FunctionType or kind_of(live.__code__.co_filename) != "user":
        raise RefusedError(f"{shown(path)} is no function of the script in the resumed run")
    held = cells(live)
    for label, item in node["a"]:
        what, _, name = label.partition(" ")
        if what == "cell" and name in held:
            cell = held[name]
            cell.cell_contents = value(cell.cell_contents, item, f"{path}.{name}")
        elif what == "default":
            defaults = live.__defaults__ or ()
            made = value(defaults[int(name)], item, f"{path}.default[{name}]")
            if not _stays(defaults[int(name)], made):
                raise RefusedError(f"{shown(path)} has another default in the resumed run")
        elif what == "keyword" and (named := live.__kwdefaults__) and name in named:
            default = named[name]
            if not _stays(default, value(default, item, f"{path}.default[{name}]")):
                raise RefusedError(f"{shown(path)} has another default in the resumed run")
        elif what == "attribute":
            _fill_attributes(live, [[name, item]], path, value)


def fill_class(live: Any, node: Node, path: str, value: Value) -> None:
    """Give a class of the script's own the variables that hold data."""
    if not isinstance(live, type) or not of_user(live):
        raise RefusedError(f"{shown(path)} is no class of the script in the resumed run")
    for name, item in node["a"]:
        old = vars(live).get(name, MISSING)
        old = old.__func__ if isinstance(old, staticmethod | classmethod) else old
        new = value(old, item, f"{path}.{name}")
        if _stays(old, new):
            continue
        data = type(new) in SCALARS or isinstance(new, list | dict | set | Tensor)
        if not data or not admitted.is_name(name) or admitted.is_code(admitted.static(live, name)):
            raise RefusedError(f"{shown(path)}.{name} of a class is not set by a checkpoint")
        type.__setattr__(live, name, new)


def fill_scaler(live: Any, node: Node, path: str, value: Value) -> None:
    """Give a GradScaler its numbers."""
    if not isinstance(live, torch.amp.GradScaler):
        raise RefusedError(f"{shown(path)} is no GradScaler in the resumed run")
    if node["v"]:
        live.load_state_dict(dict(node["v"]))


def fill_generator(live: Any, node: Node, path: str, value: Value) -> None:
    """Have a generator of random numbers go on from where it was."""
    if not isinstance(live, generators.CLASSES):
        raise RefusedError(f"{shown(path)} is no generator in the resumed run")
    generators.put_back(live, node)


def is_module(live: Any, node: Node) -> bool:
    """Whether a live value is a module of the class that was saved."""
    return isinstance(live, nn.Module) and class_name(type(live)) == node["c"]


def from_bytes(node: Node) -> Tensor:
    """A tensor that was saved as bytes; an error where its shape is not that of so many."""
    dtype, data = node["t"], node["v"]
    shape = torch.Size(node["s"])
    if not isinstance(dtype, torch.dtype) or shape.numel() * dtype.itemsize != len(data):
        raise ValueError(f"{len(data)} bytes are no tensor of shape {list(shape)}")
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype).reshape(shape)

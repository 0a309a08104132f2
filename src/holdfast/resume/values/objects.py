"""Takes objects by what they hold: of the user's own, modules, optimizers, loaders, functions."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ...source.ownership import kind_of
from . import generators
from .baseline import Comparing
from .nodes import (
    KIND,
    SCALARS,
    Node,
    SeenObjects,
    Take,
    class_name,
    holds_only_attributes,
    of_user,
    ref,
    slots,
)
from .tensors import Tensors

# What a class has that is neither data nor a function of its own.
_OF_CLASSES = (property, types.MemberDescriptorType, types.GetSetDescriptorType, type)
_OUTSIDE = {id(one) for one in (sys.stdout, sys.stderr, sys.stdin)}
_OPTIMIZER = ("state", "param_groups", "defaults")
_MODULE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class Objects:
    """Takes the objects of one look.

    What an object holds is taken by ``take``, which is handed to every method and not kept here: a
    circle of references would keep all that was seen alive.

    Args:
        tensors: takes those of modules.
        comparing: with what was there before the first step.
        seen: what the look has met.
        inside: look into modules and loaders, too.
    """

    def __init__(
        self, tensors: Tensors, comparing: Comparing, seen: SeenObjects, *, inside: bool
    ) -> None:
        self._tensors, self._comparing, self._seen = tensors, comparing, seen
        self._inside = inside
        self._layouts: dict[tuple[Any, ...], str] = {}
        self._whole: str | None = None

    # ------------------------------------------------------------------ the user's own

    def plain(self, value: Any, path: str, take: Take) -> Node:
        """An object that is what its attributes are."""
        self._seen.note(value, path)
        own = getattr(value, "__dict__", None)
        held = list(own.items()) if isinstance(own, dict) else []
        held += [(n, getattr(value, n)) for n in slots(type(value)) if hasattr(value, n)]
        return {KIND: "object", "c": class_name(type(value)), "a": _parts(held, path, take)}

    def other(self, value: Any, path: str, take: Take) -> Node:
        """An object of any other class."""
        if holds_only_attributes(type(value)):
            return self.plain(value, path, take)
        return self._comparing.held(value, path)

    def derived(self, value: Any, path: str, take: Take) -> Node:
        """An object of a class that is made from a list or a dict."""
        if not of_user(type(value)):
            return self._comparing.held(value, path)
        node = self.plain(value, path, take)
        items: Any = list(value) if isinstance(value, list) else dict(value)
        node["i"] = take(items, f"{path}[:]")
        return node

    def class_of_user(self, value: type, path: str, take: Take) -> Node:
        """Variables of a class."""
        if not of_user(value) or value in self._seen:
            return ref(value)
        self._seen.note(value, path)
        # Of a named tuple its fields: what the class is, and made again with it.
        own = ("__", "_abc", "_field") if issubclass(value, tuple) else ("__", "_abc")
        held = [
            (name, getattr(one, "__func__", one))
            for name, one in vars(value).items()
            if not name.startswith(own) and not isinstance(one, _OF_CLASSES)
        ]
        taken = _parts(held, path, take)
        return {KIND: "class", "a": taken} if taken else ref(value)

    def function(self, value: Any, path: str, take: Take) -> Node:
        """Variables of a function: its cells, defaults and attributes."""
        self._seen.note(value, path)
        if kind_of(value.__code__.co_filename) != "user":
            return ref(value)
        parts = [
            [f"cell {name}", take(cell.cell_contents, f"{path}.{name}")]
            for name, cell in cells(value).items()
        ]
        parts += [
            [f"default {i}", take(one, f"{path}.default[{i}]")]
            for i, one in enumerate(value.__defaults__ or ())
            if type(one) not in SCALARS
        ]
        parts += [
            [f"keyword {name}", take(one, f"{path}.default[{name}]")]
            for name, one in (value.__kwdefaults__ or {}).items()
            if type(one) not in SCALARS
        ]
        parts += [
            [f"attribute {name}", take(one, f"{path}.{name}")]
            for name, one in vars(value).items()
            if not name.startswith("__")
        ]
        return {KIND: "function", "a": parts} if parts else ref(value)

    def method(self, value: Any, path: str, take: Take) -> Node:
        """A method is taken with its object."""
        return {KIND: "parts", "c": "method", "a": [["__self__", take(value.__self__, path)]]}

    def bound(self, value: Any, path: str, take: Take) -> Node:
        """A method of a class that is not written in Python: taken with its object."""
        held = value.__self__
        if held is None or isinstance(held, type | types.ModuleType) or id(held) in _OUTSIDE:
            return ref(value)
        return self.method(value, path, take)

    def partial(self, value: Any, path: str, take: Take) -> Node:
        """What ``functools.partial`` holds."""
        parts = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
        return {KIND: "parts", "c": "partial", "a": _parts(parts, path, take)}

    # ------------------------------------------------------------------ of torch

    def module(self, value: nn.Module, path: str, take: Take) -> Node:
        """A module with its tensors, as far as they are not saved with the models."""
        self._seen.note(value, path)
        if not self._inside:
            return self._outline(value, path, take)
        held = [
            (name, one)
            for name, one in vars(value).items()
            if not (name in _MODULE or name.endswith("_hooks") or "_hooks_" in name)
            and not (callable(one) and not isinstance(one, nn.Module))
        ]
        own = self._tensors.of_module
        return {
            KIND: "module",
            "c": class_name(type(value)),
            **self._copy_of(value, path),
            "a": _parts(held, path, take),
            "p": [
                [name, one.requires_grad, own(one, f"{path}.{name}")]
                for name, one in value._parameters.items()
                if one is not None
            ],
            "b": [
                [name, own(one, f"{path}.{name}")]
                for name, one in value._buffers.items()
                if one is not None
            ],
            "k": _children(value, path, take),
        }

    def _copy_of(self, value: nn.Module, path: str) -> dict[str, str]:
        """Where another module of the same layout was met: a resumed script may lack a copy."""
        if self._whole is not None and path.startswith(f"{self._whole}."):
            return {}  # a part of one
        self._whole = path
        tensors = itertools.chain(value.named_parameters(), value.named_buffers())
        shapes = [(name, tuple(one.shape)) for name, one in tensors]
        layout = class_name(type(value)), str(value), tuple(shapes)
        first = self._layouts.setdefault(layout, path)
        return {} if first == path else {"t": first}

    def _outline(self, value: nn.Module, path: str, take: Take) -> Node:
        """A module without its tensors, which no code between two passes can do without."""
        user = of_user(type(value))
        return {
            KIND: "module",
            "c": class_name(type(value)),
            **self._copy_of(value, path),
            "a": [
                [name, take(one, f"{path}.{name}")]
                for name, one in vars(value).items()
                if type(one) in SCALARS and (user or name == "training")
            ],
            "p": [],
            "b": [],
            "k": _children(value, path, take),
        }

    def optimizer(self, value: Optimizer, path: str, take: Take) -> Node:
        """The settings of an optimizer; its state is saved with the models."""
        self._seen.note(value, path)
        for number, group in enumerate(value.param_groups):
            self._seen.note(group, f"{path}.param_groups[{number}]")
        groups = [
            [[k, v] for k, v in group.items() if type(v) in (float, int, bool)]
            for group in value.param_groups
        ]
        node: Node = {KIND: "optimizer", "v": groups}
        if self._inside and not type(value).__module__.startswith("torch.optim"):
            # Those of other libraries and of the user's own keep more than torch knows of.
            held = [
                (name, one)
                for name, one in vars(value).items()
                if name not in _OPTIMIZER and "hook" not in name and not callable(one)
            ]
            node["a"] = _parts(held, path, take)
        return node

    def scaler(self, value: Any, path: str) -> Node:
        """A GradScaler."""
        self._seen.note(value, path)
        return {KIND: "scaler", "v": dict(value.state_dict())}

    def generator(self, value: Any, path: str) -> Node:
        """A generator of random numbers."""
        self._seen.note(value, path)
        return generators.take(value)

    def loader(self, value: DataLoader[Any], path: str, take: Take) -> Node:
        """What a loader reads, and in which order."""
        self._seen.note(value, path)
        names = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn", "batch_size")
        # Code between two passes may ask a dataset for a count, not for what it keeps.
        few: Take = take if self._inside else lambda one, at: self._few(one, at, take)
        parts = [(n, one) for n in names if (one := vars(value).get(n)) is not None]
        return {KIND: "parts", "c": class_name(type(value)), "a": _parts(parts, path, few)}

    def dataset(self, value: Any, path: str, take: Take) -> Node:
        """A dataset that a variable or a loader holds."""
        return self.other(value, path, take) if self._inside else self._few(value, path, take)

    def _few(self, value: Any, path: str, take: Take) -> Node:
        """Plain values and generators of an object of the user's own, nothing else of it."""
        if isinstance(value, torch.Generator):
            return take(value, path)
        if not of_user(type(value)) or not isinstance(vars(value), dict):
            return ref(value)
        if value in self._seen:  # of a variable and of its loader
            return {KIND: "same", "p": self._seen.path(value)}
        self._seen.note(value, path)
        held = [
            (name, one)
            for name, one in vars(value).items()
            if type(one) in SCALARS or isinstance(one, generators.CLASSES)
        ]
        taken = _parts(held, path, take)
        return {KIND: "object", "c": class_name(type(value)), "a": taken, "few": True}


def _parts(held: Iterable[tuple[str, Any]], path: str, take: Take) -> list[Node]:
    return [[name, take(one, f"{path}.{name}")] for name, one in held]


def _children(module: nn.Module, path: str, take: Take) -> list[Node]:
    return _parts([(n, m) for n, m in module._modules.items() if m is not None], path, take)


def cells(function: Any) -> dict[str, Any]:
    """The cells of a function's closure, by the names of its variables."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            _ = cell.cell_contents
        except ValueError:
            continue  # not filled yet
        found[name] = cell
    return found

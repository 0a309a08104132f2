"""Takes what variables hold, as a tree that a checkpoint can save.

Plain values are taken by value, objects by what they hold. What a resumed script makes again by
itself (tensors that nobody has changed since training began, functions, loaders) is only named.
What can neither be saved nor made again raises ``RefusedError``.
"""

from __future__ import annotations

import argparse
import collections
import copyreg
import datetime
import decimal
import enum
import fractions
import functools
import io
import itertools
import pathlib
import pickle
import random
import re
import sys
import types
import uuid
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..diagnosis.source.files import kind_of
from ..shards import local
from .refusal import RefusedError

Node = Any
KIND = "#"
MISSING = object()
"""Stands for a variable that has no value."""

_SCALARS = frozenset((bool, int, float, str, bytes, type(None)))
_LEAVES = (torch.dtype, torch.device)
DICTS: dict[str, type] = {
    "dict": dict,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "Counter": collections.Counter,
}
# Code, which the next process has again.
_CODE = (
    types.ModuleType,
    types.BuiltinFunctionType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    property,
    staticmethod,
    classmethod,
    weakref.ref,
    np.ufunc,
    torch._C.ScriptMethod,
)
# What writes to the outside: a resumed script opens it again.
_SINKS = {
    *("tqdm", "logging", "rich", "wandb", "mlflow", "tensorboard", "tensorboardX", "matplotlib"),
    *("csv", "threading", "_thread", "multiprocessing", "concurrent", "warnings", "re", "typing"),
}
_SINK_MODULES = (
    "torch.utils.tensorboard",
    "torch.profiler",
    "torch.cuda",
    "torch.amp.autocast",
    "torch._dynamo",
    "torch._inductor",
)
_MANY, _SOME = 4096, 256
"""Items. A longer container is taken only if the source changes something of its name; after a
pass, which may be short, the smaller number counts."""
_OPTIMIZER = ("state", "param_groups", "defaults")
_HASHED = 256 << 20
_SHORT = 1 << 20
_MOST = 2 << 30
_PICKLED = 32 << 20
_DEPTH = 60
_NODES = 2_000_000
_GRAPH = 500
_ITERATORS = (
    *(type(one) for one in (iter([]), iter(()), iter({}), iter(set[int]()), iter(range(0)))),
    *(map, filter, zip, enumerate, reversed, types.GeneratorType),
)


@dataclass(slots=True)
class Baseline:
    """What was there before the first step, by its path: it is made again if it has not changed."""

    tensors: dict[str, tuple[int, int, torch.Size]] = field(
        default_factory=dict[str, tuple[int, int, torch.Size]]
    )
    arrays: dict[str, int] = field(default_factory=dict[str, int])
    held: dict[str, int] = field(default_factory=dict[str, int])
    digests: dict[str, int] = field(default_factory=dict[str, int])
    """Of tensors that have not changed, from the first checkpoint on."""


@dataclass(slots=True)
class Known:
    """Tensors that the checkpoint saves with the models."""

    ids: set[int] = field(default_factory=set[int])
    storages: set[int] = field(default_factory=set[int])

    @classmethod
    def of(cls, models: Mapping[str, nn.Module]) -> Known:
        """The parameters and buffers of some models."""
        known = cls()
        for model in models.values():
            for tensor in [*model.parameters(), *model.buffers()]:
                known.ids.add(id(tensor))
                known.storages.add(_storage(tensor))
        return known


def last_name(path: str) -> str:
    """The name by which code would change what is at a path.

    >>> last_name("module __main__/losses"), last_name("0/self.log['a.b/c'][3]")
    ('losses', 'log')
    """
    return re.sub(r"\[[^]]*\]", "", path.split("/", 1)[-1]).rsplit(".", 1)[-1]


class Taking:
    """One look at the variables.

    Args:
        known: tensors that are saved elsewhere.
        baseline: what was there before the first step.
        changes: whether the source changes something of this name.
        first: this look makes the baseline.
        inside: look into modules and loaders, too.
        inline: tensors become bytes, for a record that is compared with the next.
        graphs: tensors may have a graph that was not used yet.
        running: frames on the stack; generators among them are where the resumed script is, too.
    """

    def __init__(
        self,
        known: Known,
        baseline: Baseline,
        changes: Callable[[str], bool],
        *,
        first: bool = False,
        inside: bool = True,
        inline: bool = False,
        graphs: bool = False,
        running: Collection[FrameType] = (),
    ) -> None:
        self.bytes = 0
        self._known, self._baseline, self._changes = known, baseline, changes
        self._first, self._inside, self._inline, self._graphs = first, inside, inline, graphs
        self._seen: dict[int, tuple[str, Any]] = {}
        self._storages: dict[int, str] = {}
        self._running = {id(frame) for frame in running}
        self._depth = 0
        self._nodes = 0

    def take(self, value: Any, path: str) -> Node:
        """The node of a value."""
        kind = type(value)
        if kind in _SCALARS:
            return value
        if isinstance(value, _LEAVES):
            return value
        if id(value) in self._seen:
            return {KIND: "same", "p": self._seen[id(value)][0]}
        self._nodes += 1
        if self._depth > _DEPTH or self._nodes > _NODES:
            raise RefusedError(f"{_shown(path)} holds too much to be saved")
        self._depth += 1
        try:
            return self._take(value, kind, path)
        finally:
            self._depth -= 1

    def _note(self, value: Any, path: str) -> None:
        self._seen[id(value)] = path, value

    def _take(self, value: Any, kind: type, path: str) -> Node:
        for test, method in _METHODS:
            if isinstance(value, test):
                return method(self, value, path)
        if isinstance(value, type):
            return self._class(value, path)
        if callable(value) and not hasattr(value, "__dict__"):
            return _ref(value)
        module = str(getattr(kind, "__module__", ""))
        if module.split(".")[0] in _SINKS or module.startswith(_SINK_MODULES):
            return _ref(value)
        if module.split(".")[0] == "itertools" or hasattr(kind, "__next__"):
            raise RefusedError(f"{_shown(path)} is an iterator; its place cannot be saved")
        if _is_plain_object(kind):
            return self._object(value, path)
        return self._held(value, path)

    # ------------------------------------------------------------------ numbers

    def _tensor(self, value: Tensor, path: str) -> Node:
        self._note(value, path)
        if id(value) in self._known.ids or _storage(value) in self._known.storages:
            return _ref(value)
        if value.layout is not torch.strided or type(value) not in (Tensor, nn.Parameter):
            raise RefusedError(f"{_shown(path)} is a {_kind_of_tensor(value)}, which is not saved")
        form = value.data_ptr(), value._version if not value.is_inference() else 0, value.shape
        if self._first:
            self._baseline.tensors[path] = form
        if self._baseline.tensors.get(path) == form:
            return {KIND: "made", "c": "Tensor", "h": self._made(value, path)}
        if value.grad_fn is not None and not self._graphs and not _used(value):
            raise RefusedError(f"{_shown(path)} carries a graph from one batch to the next")
        self._alone(value, path)
        return self._saved_tensor(value) | {"g": value.requires_grad and value.is_leaf}

    def _made(self, value: Tensor, path: str) -> int:
        """The digest of a tensor that a resumed script makes again; 0 where none is taken.

        The first look needs none: what a checkpoint finds in the same memory, unchanged, is what
        was there then. Most runs of a second end without having to read their data for this.
        """
        if not self._inside or self._first:
            return 0
        known = self._baseline.digests
        if path not in known:
            known[path] = tensor_digest(value)
        return known[path]

    def _saved_tensor(self, value: Tensor) -> dict[str, Any]:
        copy = value.detach()
        self.bytes += copy.numel() * copy.element_size()
        if self.bytes > _MOST:
            raise RefusedError(f"variables hold over {_MOST >> 30} GiB that would have to be saved")
        where = str(copy.device)
        if not self._inline:
            return {KIND: "tensor", "v": copy.clone(), "d": where}
        raw = copy.cpu().contiguous().reshape(-1).view(torch.uint8) if copy.numel() else None
        data = b"" if raw is None else raw.numpy().tobytes()
        return {KIND: "bytes", "v": data, "t": copy.dtype, "s": list(copy.shape), "d": where}

    def _alone(self, value: Tensor, path: str) -> None:
        """Refuse two tensors in one memory: they would be two afterwards."""
        other = self._storages.setdefault(_storage(value), path)
        if other != path and value.numel():
            raise RefusedError(f"{_shown(path)} and {_shown(other)} share their memory")

    def _array(self, value: np.ndarray[Any, Any], path: str) -> Node:
        self._note(value, path)
        if value.dtype.kind not in "biufc":
            return self._held(value, path)
        if not self._inside and value.nbytes > _SHORT:
            return {KIND: "ref", "c": "ndarray"}  # data, looked at with every checkpoint
        digest = _digest(value)
        if self._first:
            self._baseline.arrays[path] = digest
        if self._baseline.arrays.get(path) == digest:
            return {KIND: "made", "c": "ndarray", "h": digest}
        if value.base is not None:
            value = value.copy()
        self.bytes += value.nbytes
        return {KIND: "array", "v": value.copy()}

    def _number(self, value: Any, path: str) -> Node:
        return value.copy() if value.dtype.kind in "biufc" else self._held(value, path)

    def _complex(self, value: complex, path: str) -> Node:
        return {KIND: "complex", "v": [value.real, value.imag]}

    # ------------------------------------------------------------------ containers

    def _large(self, value: Any, path: str) -> bool:
        if len(value) <= (_MANY if self._inside else _SOME):
            return False
        return not self._changes(last_name(path))

    def _items(self, values: Any, path: str) -> list[Node]:
        if all(type(one) in _SCALARS for one in values):
            return list(values)
        return [self.take(one, f"{path}[{i}]") for i, one in enumerate(values)]

    def _list(self, value: Any, path: str) -> Node:
        self._note(value, path)
        if self._large(value, path):
            return _large_node(value)
        node: Node = {KIND: type(value).__name__, "v": self._items(value, path)}
        if isinstance(value, collections.deque):
            node["m"] = value.maxlen
        return node

    def _tuple(self, value: Any, path: str) -> Node:
        if type(value) is torch.Size:
            return {KIND: "size", "v": list(value)}
        if self._large(value, path):
            return _large_node(value)
        node: Node = {KIND: "tuple", "v": self._items(value, path)}
        if hasattr(type(value), "_fields"):
            node["c"] = _class_name(type(value))
        elif type(value) is not tuple:
            return self._held(value, path)
        return node

    def _dict(self, value: Any, path: str) -> Node:
        self._note(value, path)
        if self._large(value, path):
            return _large_node(value)
        pairs: list[Node] = []
        for number, (key, one) in enumerate(value.items()):
            if type(key) in _SCALARS:
                pairs.append([key, self.take(one, f"{path}[{key!r}]")])
            else:
                where = f"{path}[key {number}]"
                pairs.append([self.take(key, where), self.take(one, f"{path}[{number}]")])
        node: Node = {KIND: "dict", "t": type(value).__name__, "v": pairs}
        if isinstance(value, collections.defaultdict):
            factory = value.default_factory
            node["f"] = getattr(factory, "__name__", "") if factory in (int, float, list) else ""
        return node

    # ------------------------------------------------------------------ objects

    def _object(self, value: Any, path: str) -> Node:
        self._note(value, path)
        own = getattr(value, "__dict__", None)
        held = list(own.items()) if isinstance(own, dict) else []
        held += [(n, getattr(value, n)) for n in _slots(type(value)) if hasattr(value, n)]
        return {
            KIND: "object",
            "c": _class_name(type(value)),
            "a": [[name, self.take(one, f"{path}.{name}")] for name, one in held],
        }

    def _derived(self, value: Any, path: str) -> Node:
        """An object of a class that is made from a list or a dict."""
        if kind_of(_file(type(value))) != "user":
            return self._held(value, path)
        node = self._object(value, path)
        items: Any = list(value) if isinstance(value, list) else dict(value)
        take = self._list if isinstance(value, list) else self._dict
        node["i"] = take(items, f"{path}[:]")
        return node

    def _module(self, value: nn.Module, path: str) -> Node:
        self._note(value, path)
        if not self._inside:
            return self._outline(value, path)
        skipped = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
        attributes: list[Node] = []
        for name, one in vars(value).items():
            if name in skipped or name.endswith("_hooks") or "_hooks_" in name:
                continue
            if not (callable(one) and not isinstance(one, nn.Module)):
                attributes.append([name, self.take(one, f"{path}.{name}")])
        return {
            KIND: "module",
            "c": _class_name(type(value)),
            "a": attributes,
            "p": [
                [name, one.requires_grad, self._own(one, f"{path}.{name}")]
                for name, one in value._parameters.items()
                if one is not None
            ],
            "b": [
                [name, self._own(one, f"{path}.{name}")]
                for name, one in value._buffers.items()
                if one is not None
            ],
            "k": [
                [name, self.take(one, f"{path}.{name}")]
                for name, one in value._modules.items()
                if one is not None
            ],
        }

    def _outline(self, value: nn.Module, path: str) -> Node:
        """A module without its tensors, which no code between two passes can do without."""
        user = kind_of(_file(type(value))) == "user"
        return {
            KIND: "module",
            "c": _class_name(type(value)),
            "a": [
                [name, one]
                for name, one in vars(value).items()
                if type(one) in _SCALARS and (user or name == "training")
            ],
            "p": [],
            "b": [],
            "k": [
                [name, self.take(one, f"{path}.{name}")]
                for name, one in value._modules.items()
                if one is not None
            ],
        }

    def _own(self, value: Tensor, path: str) -> Node:
        """A tensor of a module, unless it is saved with the models."""
        if id(value) in self._known.ids or id(value) in self._seen:
            return None
        if nn.parameter.is_lazy(value):
            raise RefusedError(f"{_shown(path)} has no shape yet")
        self._note(value, path)
        form = value.data_ptr(), value._version if not value.is_inference() else 0, value.shape
        if self._first:
            self._baseline.tensors[path] = form
        if self._baseline.tensors.get(path) == form:
            return {KIND: "made", "c": "Tensor", "h": self._made(value, path)}
        return self._saved_tensor(value)

    def _optimizer(self, value: Optimizer, path: str) -> Node:
        self._note(value, path)
        groups = [
            [[k, v] for k, v in group.items() if type(v) in (float, int, bool)]
            for group in value.param_groups
        ]
        node: Node = {KIND: "optimizer", "v": groups}
        if self._inside and not type(value).__module__.startswith("torch.optim"):
            # Those of other libraries and of the user's own keep more than torch knows of.
            held = [
                (k, v) for k, v in vars(value).items() if k not in _OPTIMIZER and "hook" not in k
            ]
            node["a"] = [[k, self.take(v, f"{path}.{k}")] for k, v in held if not callable(v)]
        return node

    def _loader(self, value: DataLoader[Any], path: str) -> Node:
        self._note(value, path)
        names = ("dataset", "sampler", "batch_sampler", "generator", "collate_fn")
        parts = [(n, vars(value).get(n)) for n in names]
        if not self._inside:
            # Code between two passes may ask a dataset for a count, not for what it keeps.
            few = [[n, self._few(one, f"{path}.{n}")] for n, one in parts if one is not None]
            return {KIND: "parts", "c": _class_name(type(value)), "a": few}
        return {
            KIND: "parts",
            "c": _class_name(type(value)),
            "a": [[n, self.take(one, f"{path}.{n}")] for n, one in parts if one is not None],
        }

    def _dataset(self, value: Any, path: str) -> Node:
        if self._inside and _is_plain_object(type(value)):
            return self._object(value, path)
        return self._held(value, path) if self._inside else self._few(value, path)

    def _few(self, value: Any, path: str) -> Node:
        """Plain values and generators of an object of the user's own, nothing else of it."""
        if isinstance(value, torch.Generator):
            return self.take(value, path)
        if kind_of(_file(type(value))) != "user" or not isinstance(vars(value), dict):
            return _ref(value)
        self._note(value, path)
        kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
        held = [
            [name, self.take(one, f"{path}.{name}")]
            for name, one in vars(value).items()
            if type(one) in _SCALARS or isinstance(one, kinds)
        ]
        return {KIND: "object", "c": _class_name(type(value)), "a": held, "few": True}

    def _iterator(self, value: Any, path: str) -> Node:
        return _ref(value)  # its place is saved with the pass over its loader

    def _function(self, value: Any, path: str) -> Node:
        self._note(value, path)
        if kind_of(value.__code__.co_filename) != "user":
            return _ref(value)
        parts = [
            [f"cell {name}", self.take(cell.cell_contents, f"{path}.{name}")]
            for name, cell in _cells(value)
        ]
        parts += [
            [f"default {i}", self.take(one, f"{path}.default[{i}]")]
            for i, one in enumerate(value.__defaults__ or ())
            if isinstance(one, list | dict | set)
        ]
        parts += [
            [f"attribute {name}", self.take(one, f"{path}.{name}")]
            for name, one in vars(value).items()
            if not name.startswith("__")
        ]
        return {KIND: "function", "a": parts} if parts else _ref(value)

    def _method(self, value: Any, path: str) -> Node:
        return {KIND: "parts", "c": "method", "a": [["__self__", self.take(value.__self__, path)]]}

    def _partial(self, value: Any, path: str) -> Node:
        parts = [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
        taken = [[n, self.take(one, f"{path}.{n}")] for n, one in parts]
        return {KIND: "parts", "c": "partial", "a": taken}

    def _class(self, value: type, path: str) -> Node:
        if kind_of(_file(value)) != "user" or id(value) in self._seen:
            return _ref(value)
        self._note(value, path)
        held = [
            (name, one)
            for name, one in vars(value).items()
            if not name.startswith("__")
            and (type(one) in _SCALARS or isinstance(one, list | dict | set | Tensor))
            and not name.startswith("_abc")
        ]
        taken = [[name, self.take(one, f"{path}.{name}")] for name, one in held]
        return {KIND: "class", "a": taken} if taken else _ref(value)

    def _scaler(self, value: Any, path: str) -> Node:
        self._note(value, path)
        return {KIND: "scaler", "v": dict(value.state_dict())}

    def _rng(self, value: Any, path: str) -> Node:
        self._note(value, path)
        if isinstance(value, torch.Generator):
            state = value.get_state()
            return {KIND: "generator", "v": state.numpy().tobytes()}
        if isinstance(value, random.Random):
            return {KIND: "random", "v": _listed(value.getstate())}
        if isinstance(value, np.random.Generator):
            return {KIND: "random", "v": _listed(value.bit_generator.state)}
        return {KIND: "random", "v": _listed(value.get_state(legacy=False))}

    def _file(self, value: Any, path: str) -> Node:
        mode = str(getattr(value, "mode", ""))
        if ("w" in mode or "x" in mode) and not value.closed:
            text = "is a file that is opened for writing anew; a resumed run would begin it again"
            raise RefusedError(f"{_shown(path)} {text}")
        return _ref(value)

    def _range(self, value: range, path: str) -> Node:
        return {KIND: "range", "v": [value.start, value.stop, value.step]}

    def _date(self, value: Any, path: str) -> Node:
        if isinstance(value, datetime.timedelta):
            parts = [value.days, value.seconds, value.microseconds]
            return {KIND: "date", "c": "timedelta", "v": parts}
        return {KIND: "date", "c": type(value).__name__, "v": value.isoformat()}

    def _written(self, value: Any, path: str) -> Node:
        return {KIND: "written", "c": type(value).__name__, "v": str(value)}

    def _path(self, value: pathlib.PurePath, path: str) -> Node:
        return {KIND: "path", "v": str(value)}

    def _enum(self, value: enum.Enum, path: str) -> Node:
        return {KIND: "enum", "c": _class_name(type(value)), "v": value.name}

    def _code(self, value: Any, path: str) -> Node:
        return _ref(value)

    def _stops(self, value: Any, path: str) -> Node:
        if isinstance(value, types.GeneratorType) and id(value.gi_frame) in self._running:
            return _ref(value)
        raise RefusedError(f"{_shown(path)} is an iterator; its place cannot be saved")

    def _held(self, value: Any, path: str) -> Node:
        """Something that is only compared: it must be what it was before the first step."""
        try:
            digest = _pickled(value)
        except Exception:
            text = f"is a {_class_name(type(value))}, which cannot be saved"
            raise RefusedError(f"{_shown(path)} {text}") from None
        if self._first:
            self._baseline.held[path] = digest
        before = self._baseline.held.get(path)
        if before is not None and before != digest:
            text = f"is a {_class_name(type(value))}; it changes and cannot be saved"
            raise RefusedError(f"{_shown(path)} {text}")
        self._note(value, path)
        return {KIND: "held", "c": _class_name(type(value)), "h": digest}


_METHODS: tuple[tuple[Any, Callable[[Taking, Any, str], Node]], ...] = (
    (_BaseDataLoaderIter, Taking._iterator),
    (Tensor, Taking._tensor),
    (nn.Module, Taking._module),
    (np.ndarray, Taking._array),
    (np.generic, Taking._number),
    (complex, Taking._complex),
    (enum.Enum, Taking._enum),
    (types.FunctionType, Taking._function),
    (types.MethodType, Taking._method),
    (_CODE, Taking._code),
    (Optimizer, Taking._optimizer),
    (LRScheduler, Taking._object),
    (DataLoader, Taking._loader),
    (Dataset, Taking._dataset),
    (torch.amp.GradScaler, Taking._scaler),
    (
        (torch.Generator, random.Random, np.random.Generator, np.random.RandomState),
        Taking._rng,
    ),
    (io.IOBase, Taking._file),
    (range, Taking._range),
    (argparse.ArgumentParser, Taking._code),
    ((datetime.date, datetime.time, datetime.timedelta), Taking._date),
    ((decimal.Decimal, fractions.Fraction, uuid.UUID), Taking._written),
    (pathlib.PurePath, Taking._path),
    (functools.partial, Taking._partial),
    (_ITERATORS, Taking._stops),
    (tuple, Taking._tuple),
)


def _exactly(kinds: tuple[type, ...]) -> Any:
    """What ``isinstance`` takes for these classes alone, none that is made from them."""

    class Exact(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return type(instance) in kinds

    return Exact("Exact", (), {})


_METHODS += (
    (_exactly((list, set, frozenset, collections.deque)), Taking._list),
    (_exactly(tuple(DICTS.values())), Taking._dict),
    ((list, dict), Taking._derived),
)


def _large_node(value: Any) -> Node:
    name, digest = type(value).__name__, items_digest(value)
    return {KIND: "large", "n": len(value), "c": name, "h": digest}


def _ref(value: Any) -> Node:
    return {KIND: "ref", "c": type(value).__name__}


def _shown(path: str) -> str:
    """A path as the user would write it: without the frame or the module."""
    return path.split("/", 1)[-1]


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _file(kind: type) -> str:
    module = sys.modules.get(kind.__module__)
    return str(getattr(module, "__file__", "") or "")


def _is_plain_object(kind: type) -> bool:
    """Whether an object is what its attributes are."""
    return (
        kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
        and not (kind.__flags__ & (1 << 8) and kind.__module__ == "builtins")
        and (bool(getattr(kind, "__dictoffset__", 0)) or bool(_slots(kind)))
    )


def _slots(kind: type) -> list[str]:
    names: list[str] = list(copyreg._slotnames(kind) or ())  # type: ignore[attr-defined]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            _ = cell.cell_contents
        except ValueError:
            continue  # not filled yet
        yield name, cell


def cells(function: Any) -> dict[str, Any]:
    """The cells of a function's closure, by the names of its variables."""
    return dict(_cells(function))


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _kind_of_tensor(value: Tensor) -> str:
    kind = type(value).__name__
    return kind if kind not in ("Tensor", "Parameter") else f"{value.layout} tensor"


def tensor_digest(value: Tensor) -> int:
    """A digest of the values of a tensor; of a large one, of some of them."""
    value = local(value)  # other ranks are not asked
    flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach().flatten()
    if value.numel() * value.element_size() > _HASHED:
        flat = flat[:: max(1, flat.numel() // (1 << 20))]
    if not flat.numel():
        return 0
    return _digest(flat.cpu().contiguous().view(torch.uint8).numpy())


def array_digest(value: np.ndarray[Any, Any]) -> int:
    """The same of an array."""
    return _digest(value)


def items_digest(value: Any) -> int:
    """A digest of the first items of a long container of plain values; 0 for others."""
    some = list(itertools.islice(value, 512))
    if isinstance(value, dict):
        some = [(key, value[key]) for key in some]
    plain = all(
        type(part) in _SCALARS for one in some for part in (one if type(one) is tuple else (one,))
    )
    return zlib.crc32(repr(some).encode()) if plain and not isinstance(value, set) else 0


def _digest(value: np.ndarray[Any, Any]) -> int:
    seed = zlib.crc32(f"{value.shape}{value.dtype}".encode())
    if value.nbytes > _HASHED:
        value = value.reshape(-1)[:: max(1, value.size // (1 << 20))]
    return zlib.crc32(np.ascontiguousarray(value).view(np.uint8).data, seed) if value.size else seed


class _Short(io.BytesIO):
    """Takes so much and no more."""

    def write(self, data: Any, /) -> int:
        if self.tell() + len(data) > _PICKLED:
            raise ValueError("too large")
        return super().write(data)


def _pickled(value: Any) -> int:
    target = _Short()
    pickle.Pickler(target, 4).dump(value)
    return zlib.crc32(target.getbuffer())


def digest_of(value: Any) -> int:
    """What ``held`` values are compared by."""
    return _pickled(value)


def _listed(state: Any) -> Any:
    """The state of a generator in plain containers."""
    if isinstance(state, tuple):
        return {KIND: "tuple", "v": [_listed(one) for one in state]}
    if isinstance(state, dict):
        return {KIND: "dict", "v": [[key, _listed(one)] for key, one in state.items()]}
    return state.tolist() if isinstance(state, np.ndarray) else state


def unlisted(state: Any) -> Any:
    """The same as it was."""
    if isinstance(state, Mapping) and state.get(KIND) == "tuple":
        return tuple(unlisted(one) for one in state["v"])
    if isinstance(state, Mapping) and state.get(KIND) == "dict":
        return {key: unlisted(one) for key, one in state["v"]}
    return np.asarray(state, dtype=np.uint32) if isinstance(state, list) else state


def _used(value: Tensor) -> bool:
    """Whether a backward pass has freed a part of the graph, so that nobody can use it again."""
    todo, seen = [value.grad_fn], set[int]()
    while todo and len(seen) < _GRAPH:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        for name in dir(node):
            if name.startswith("_saved_"):
                try:
                    getattr(node, name)
                except RuntimeError as error:
                    if "freed" in str(error):
                        return True
                except Exception:
                    continue
        todo += [one for one, _ in node.next_functions]
    return False

"""Takes what variables hold, as a tree that a checkpoint can save.

Plain values are taken by value, objects by what they hold. What a resumed script makes again by
itself (tensors that nobody has changed since training began, functions, loaders) is only named.
What can neither be saved nor made again raises ``RefusedError``.
"""

from __future__ import annotations

import argparse
import functools
import io
import threading
import types
import weakref
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..refusal import RefusedError
from . import generators, hidden, open_files, plain
from .baseline import Comparing, StartValues
from .containers import EXACT_DICTS, EXACT_LISTS, Containers
from .nodes import KIND, READS, SCALARS, WORKS, Node, SeenObjects, Take, of_user, ref, shown
from .objects import Objects
from .secrets import Secrets
from .tensors import SavedTensors, Tensors

# What the next process has again: code.
_NAMED = (
    types.ModuleType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    property,
    staticmethod,
    classmethod,
    weakref.ref,
    np.ufunc,
    torch._C.ScriptMethod,
    torch._C.ScriptFunction,
    argparse.ArgumentParser,
)
# What writes to the outside or is registered with torch: a resumed script opens or makes it again.
_SINKS = {
    *("tqdm", "logging", "rich", "wandb", "mlflow", "tensorboard", "tensorboardX", "matplotlib"),
    *("csv", "_csv", "threading", "_thread", "multiprocessing", "concurrent", "warnings", "re"),
    *("typing", "functools"),
}
_SINK_MODULES = (
    "torch.utils.tensorboard",
    "torch.profiler",
    "torch.cuda",
    "torch.amp.autocast",
    "torch._dynamo",
    "torch._inductor",
    "torch.library",
    "torch._library",
    "torch._ops",
)
_ITERATORS = (
    *(type(one) for one in (iter({}), iter(set[int]()))),
    *(map, filter, zip, enumerate, reversed, types.GeneratorType),
)
_BOUND = types.BuiltinFunctionType, types.MethodWrapperType
# By class alone: whether something is a torch.device is asked in Python.
_VALUES = SCALARS | {torch.dtype, torch.device}
_DEPTH = 60
_NODES = 2_000_000

_TakeWith = Callable[[Any, str, Take], Node]
"""The same of what holds others, which are taken by the last argument."""


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
        knows: whether an open file is one whose length is noted.
        feed: takes an iterator over a loader; one is only named where none is given.
        running: frames on the stack; generators among them are where the resumed script is, too.
    """

    def __init__(
        self,
        known: SavedTensors,
        baseline: StartValues,
        changes: Callable[[str], bool],
        *,
        first: bool = False,
        inside: bool = True,
        inline: bool = False,
        graphs: bool = False,
        feed: _TakeWith | None = None,
        running: Collection[FrameType] = (),
        knows: Callable[[Any], bool] = lambda file: False,
    ) -> None:
        seen = self._seen = SeenObjects()
        secrets = self._secrets = Secrets()
        comparing = Comparing(baseline, seen, first=first, digests=inside)
        tensors = self._tensors = Tensors(
            known, comparing, seen, inside=inside, inline=inline, graphs=graphs
        )
        objects = self._objects = Objects(tensors, comparing, seen, inside=inside)
        # What a loop reads is made anew by nobody but the loop.
        containers = Containers(
            lambda name: name.startswith((READS, WORKS)) or changes(name),
            comparing,
            seen,
            secrets,
            inside=inside,
        )
        self._running, self._known = {id(frame) for frame in running}, known
        # The first row that fits counts.
        self._rows: tuple[tuple[Any, _TakeWith], ...] = (
            (_BaseDataLoaderIter, _named if feed is None else _fed(feed, comparing, seen)),
            (_NAMED, _named),
            (Tensor, _leaf(tensors.tensor)),
            (np.ndarray, tensors.array),
            (np.generic, _leaf(tensors.number)),
            (plain.CLASSES, _leaf(plain.take)),
            (torch.amp.GradScaler, _leaf(objects.scaler)),
            (generators.CLASSES, _leaf(objects.generator)),
            (io.IOBase, lambda value, path, _: open_files.take(value, path, knows)),
            (hidden.COUNTED, _iterator(comparing)),
            (_ITERATORS, _iterator(comparing)),
            (hidden.CACHE, hidden.take_cache),
            (threading.local, hidden.take_local),
            (threading.Thread, hidden.thread),
            ((threading.Event, threading.Semaphore), objects.plain),
            (_BOUND, objects.bound),
            (nn.Module, objects.module),
            (types.FunctionType, objects.function),
            (types.MethodType, objects.method),
            (Optimizer, objects.optimizer),
            (LRScheduler, objects.plain),
            (DataLoader, objects.loader if feed is None else _lasting(objects.loader)),
            (Dataset, objects.dataset),
            (functools.partial, objects.partial),
            (tuple, containers.take_tuple),
            (EXACT_LISTS, containers.take_list),
            (EXACT_DICTS, containers.take_dict),
            ((list, dict), objects.derived),
            (type, objects.class_of_user),
        )
        self._row_of: dict[type, _TakeWith] = {}
        """By class: data is thousands of objects of a few."""
        self._depth = 0
        self._nodes = 0

    @property
    def bytes(self) -> int:
        """Of tensors and arrays that were taken by value."""
        return self._tensors.bytes

    def trains(self, value: Any) -> bool:
        """Whether this is a module whose tensors are saved with the models."""
        if not isinstance(value, nn.Module):
            return False
        return any(id(one) in self._known.ids for one in value.parameters())

    def take(self, value: Any, path: str) -> Node:
        """The node of a value."""
        kind = type(value)
        if kind is str or kind is bytes:
            return self._secrets.text(value, path)
        if kind in _VALUES:
            return value
        if value in self._seen:
            return {KIND: "same", "p": self._seen.path(value)}
        self._nodes += 1
        if self._depth > _DEPTH or self._nodes > _NODES:
            raise RefusedError(f"{shown(path)} holds too much to be saved")
        self._depth += 1
        try:
            return self._take(value, path)
        finally:
            self._depth -= 1

    def _take(self, value: Any, path: str) -> Node:
        if isinstance(value, types.GeneratorType) and id(value.gi_frame) in self._running:
            return ref(value)
        if type(value).__module__.startswith("tqdm.") and "n" in vars(value):
            return {KIND: "bar", "c": "progress bar", "n": vars(value)["n"]}
        row = self._row_of.get(type(value))
        if row is not None:
            return row(value, path, self.take)
        for kinds, row in self._rows:
            if isinstance(value, kinds):
                self._row_of[type(value)] = row
                return row(value, path, self.take)
        if callable(value) and not hasattr(value, "__dict__"):
            return ref(value)
        module = str(getattr(type(value), "__module__", ""))
        if module.split(".")[0] in _SINKS or module.startswith(_SINK_MODULES):
            return ref(value)
        iterates = module.split(".")[0] == "itertools" or hasattr(type(value), "__next__")
        if iterates and not of_user(type(value)):
            hidden.refuse_iterator(value, path)
        return self._objects.other(value, path, self.take)


def _iterator(comparing: Comparing) -> _TakeWith:
    """Of iterators: a resumed script must have one like it by itself."""

    def row(value: Any, path: str, take: Take) -> Node:
        node = hidden.take_iterator(value, path, take)
        if node[KIND] == "place" and not comparing.shape(node["v"], path):
            hidden.refuse_iterator(value, path)
        return node

    return row


def _lasting(loader: _TakeWith) -> _TakeWith:
    """Of loaders: with the iterator that one keeps from pass to pass, for its workers."""

    def row(value: Any, path: str, take: Take) -> Node:
        node = loader(value, path, take)
        if value.persistent_workers and value._iterator is not None:
            node["a"].append(["_iterator", take(value._iterator, f"{path}._iterator")])
        return node

    return row


def _fed(feed: _TakeWith, comparing: Comparing, seen: SeenObjects) -> _TakeWith:
    """Of iterators over loaders; a stream is at a ``yield`` that the first round leads to."""

    def row(value: Any, path: str, take: Take) -> Node:
        seen.note(value, path)
        node = feed(value, path, take)
        place = node.get("s", {}).get("place")
        if place is not None and not comparing.shape(place, path):
            raise RefusedError(
                f"{shown(path)} reads a stream that is at another yield than at first"
            )
        return node

    return row


def _leaf(take: Take) -> _TakeWith:
    """Of what holds no others."""
    return lambda value, path, _: take(value, path)


def _named(value: Any, path: str, take: Take) -> Node:
    return ref(value)

"""Takes tensors and arrays: by name where a resumed script has them again, by value elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..refusal import RefusedError
from . import arrays
from .baseline import Comparing
from .nodes import KIND, Node, SeenObjects, Take, ref, shown

_SHORT = 1 << 20
_MOST = 2 << 30
_GRAPH = 500
_DTYPES = {one.name: f"torch.{one.name}" for one in map(np.dtype, "?bBhilefd")}


@dataclass(slots=True)
class SavedTensors:
    """Tensors that the checkpoint saves with the models."""

    ids: set[int] = field(default_factory=set[int])
    storages: set[int] = field(default_factory=set[int])

    @classmethod
    def of(cls, models: Mapping[str, nn.Module]) -> SavedTensors:
        """The parameters and buffers of some models."""
        known = cls()
        for model in models.values():
            for tensor in [*model.parameters(), *model.buffers()]:
                known.ids.add(id(tensor))
                known.storages.add(storage_of(tensor))
        return known


class Tensors:
    """Takes the tensors of one look.

    Args:
        known: tensors that are saved elsewhere.
        comparing: with what was there before the first step.
        seen: what the look has met.
        inside: arrays of any size are taken.
        inline: tensors become bytes, for a record that is compared with the next.
        graphs: tensors may have a graph that was not used yet.
    """

    def __init__(
        self,
        known: SavedTensors,
        comparing: Comparing,
        seen: SeenObjects,
        *,
        inside: bool,
        inline: bool,
        graphs: bool,
    ) -> None:
        self.bytes = 0
        """Taken by value."""
        self._known, self._comparing, self._seen = known, comparing, seen
        self._inside, self._inline, self._graphs = inside, inline, graphs
        self._storages: dict[int, tuple[str, Tensor, dict[str, Any]]] = {}
        """Path, tensor and node of the first one that is in some memory."""
        self._arrays, self._on_host = arrays.Spans(), arrays.Spans()
        """Path and array, and whether a resumed script makes it again; the same as of storages."""

    def tensor(self, value: Tensor, path: str) -> Node:
        """The node of a tensor that a variable holds."""
        self._seen.note(value, path)
        if id(value) in self._known.ids or storage_of(value) in self._known.storages:
            return ref(value)
        if value.layout is not torch.strided or type(value) not in (Tensor, nn.Parameter):
            raise RefusedError(f"{shown(path)} is a {_kind(value)}, which is not saved")
        made = self._comparing.tensor(value, path)
        start = storage_of(value)
        length = _bytes(value) if value.is_cpu and value.numel() else 0
        array = self._arrays.at(start, length) if length else None
        if array is not None:
            if made is not None and array[2]:
                return made
            return self._part_of_array(value, path, *array[:2])
        if made is not None:
            self._meet(start, path, value, {})
            return made
        if value.grad_fn is not None and not self._graphs and not _used(value):
            raise RefusedError(f"{shown(path)} carries a graph from one batch to the next")
        other = self._storages.get(start)
        if other is not None and value.numel():
            return self._part(value, path, *other)
        node = self._saved(value) | {"g": value.requires_grad and value.is_leaf}
        self._meet(start, path, value, node)
        return node

    def _meet(self, start: int, path: str, value: Tensor, node: dict[str, Any]) -> None:
        found = self._storages.setdefault(start, (path, value, node))
        if value.is_cpu and value.numel():
            self._on_host.add(start, _bytes(value), found)

    def of_module(self, value: Tensor, path: str) -> Node:
        """The node of a parameter or buffer; None if it is saved with the models or elsewhere."""
        if id(value) in self._known.ids or value in self._seen:
            return None
        if nn.parameter.is_lazy(value):
            raise RefusedError(f"{shown(path)} has no shape yet")
        self._seen.note(value, path)
        return self._comparing.tensor(value, path) or self._saved(value)

    def _saved(self, value: Tensor) -> dict[str, Any]:
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

    def _part(
        self, value: Tensor, path: str, first: str, other: Tensor, node: dict[str, Any]
    ) -> Node:
        """The node of a tensor in the memory of another one: they are in one afterwards, too."""
        if self._inline or value.dtype != other.dtype or value.requires_grad or node.get("g"):
            raise RefusedError(f"{shown(path)} and {shown(first)} share their memory")
        self._whole(other, node)
        return {KIND: "part", "c": "Tensor", "p": first, "w": _layout(value)}

    def _whole(self, tensor: Tensor, node: dict[str, Any]) -> None:
        """Have the node of a tensor hold all of its memory, in place of what it has of it."""
        if node and "w" not in node:
            whole = tensor.detach().as_strided((_items(tensor),), (1,), 0)
            node.update(self._saved(whole), w=_layout(tensor))

    def _part_of_array(
        self, value: Tensor, path: str, first: str, array: np.ndarray[Any, Any]
    ) -> Node:
        """The node of a tensor in the memory of an array."""
        after = storage_of(value) - arrays.start_of(array)
        alike = str(value.dtype) == _DTYPES.get(array.dtype.name) and not after % array.itemsize
        alike = alike and after >= 0 and after + _bytes(value) <= array.nbytes
        if self._inline or value.requires_grad or not alike:
            raise RefusedError(f"{shown(path)} and {shown(first)} share their memory")
        shape, strides, (begins,) = _layout(value)
        begins += after // array.itemsize
        return {KIND: "part", "c": "Tensor", "p": first, "w": [shape, strides, [begins]]}

    def array(self, value: np.ndarray[Any, Any], path: str, take: Take) -> Node:
        """The node of an array."""
        self._seen.note(value, path)
        if value.dtype.kind not in "biufc":
            return self._comparing.held(value, path)
        if not self._inside and value.nbytes > _SHORT:
            return ref(value)  # data, looked at with every checkpoint
        made = self._comparing.array(value, path)
        shares = self._shared(value, path, take, made) if self._inside and value.size else None
        if shares is not None:
            return shares
        if made is not None:
            return made
        self.bytes += value.nbytes
        if self.bytes > _MOST:
            raise RefusedError(f"variables hold over {_MOST >> 30} GiB that would have to be saved")
        return {KIND: "array", "v": value.copy()}

    def _shared(
        self, value: np.ndarray[Any, Any], path: str, take: Take, made: Node | None
    ) -> Node | None:
        """The node of an array in the memory of another one or a tensor; None for its own."""
        start = arrays.start_of(value)
        if start in self._known.storages:
            return ref(value)
        root = arrays.root_of(value)
        if root is not None:
            node = take(root, f"{path}.base")
            return {KIND: "view", "v": node, "w": arrays.layout(value, arrays.start_of(root))}
        other = self._on_host.at(start, value.nbytes)
        if other is None or (made is not None and not other[2]):
            self._arrays.add(start, value.nbytes, (path, value, made is not None))
            return None
        first, tensor, node = other
        alike = str(tensor.dtype) == _DTYPES.get(value.dtype.name)
        if start < storage_of(tensor) or not alike or self._inline or node.get("g"):
            raise RefusedError(f"{shown(path)} and {shown(first)} share their memory")
        self._whole(tensor, node)
        memory = {KIND: "same", "p": first}
        return {KIND: "view", "v": memory, "w": arrays.layout(value, storage_of(tensor))}

    def number(self, value: Any, path: str) -> Node:
        """The node of a number of numpy's."""
        return value.copy() if value.dtype.kind in "biufc" else self._comparing.held(value, path)


def storage_of(tensor: Tensor) -> int:
    """The address of the memory of a tensor, by which those that share it are found."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _items(tensor: Tensor) -> int:
    return _bytes(tensor) // tensor.element_size()


def _layout(tensor: Tensor) -> list[list[int]]:
    return [list(tensor.shape), list(tensor.stride()), [int(tensor.storage_offset())]]


def _kind(value: Tensor) -> str:
    kind = type(value).__name__
    return kind if kind not in ("Tensor", "Parameter") else f"{value.layout} tensor"


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

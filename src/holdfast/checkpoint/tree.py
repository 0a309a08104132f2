"""A state as a JSON-able skeleton and a list of tensors, and back, value for value.

A tree is made of dicts (keys: str or int), lists and tuples; its leaves are None, bool, int,
float, str, bytes, numpy arrays and numbers, and tensors. JSON alone would turn int keys into
strings, tuples into lists and NaN into nonsense, so whatever JSON has no form for stands in the
skeleton as a dict of one key that says what it is. Nothing is ever pickled.

    >>> skeleton, tensors = flatten({"w": torch.ones(2), "betas": (0.9, 0.999), 3: None})
    >>> paths(skeleton), len(tensors)
    (['w'], 1)
    >>> unflatten(skeleton, tensors)
    {'w': tensor([1., 1.]), 'betas': (0.9, 0.999), 3: None}
"""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import CheckpointError

ROOT = "holdfast.tree"
"""The key that tells a skeleton from a tree."""

# Numbers that are a row of bytes; an array of objects could only be pickled.
_ARRAY_KINDS = "biufc"


def flatten(tree: Any) -> tuple[Any, list[Tensor]]:
    """Take a tree apart: its skeleton, and its tensors in the order in which they stand in it.

    The tensors are the live ones. One that stands in several places (tied weights, also as
    different views of exactly the same memory) is listed once.
    """
    taker = _Taker()
    try:
        return {ROOT: taker.node(tree, ())}, taker.tensors
    except RecursionError as error:
        raise CheckpointError(
            "the state is nested too deeply or contains itself; save what it refers to instead"
        ) from error


def unflatten(skeleton: Any, tensors: Sequence[Tensor]) -> Any:
    """Put a tree together again; what was one tensor in several places is one again."""
    try:
        return _build(skeleton[ROOT], tensors)
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
    ) as error:
        raise CheckpointError(
            f"this is no skeleton of a state ({error!r}), with {len(tensors)} tensors; "
            "take it from flatten() or from a checkpoint of this version"
        ) from error


def paths(tree: Any) -> list[str]:
    """Dotted names of the tensors of a tree or a skeleton, each once, in the order of ``flatten``.

    Where two would have the same name (``{"a.b": …, "a": {"b": …}}``) the later one gets ``#2``.
    """
    skeleton = tree if is_skeleton(tree) else flatten(tree)[0]
    names: dict[int, str] = {}
    taken = {"__metadata__"}  # a word of the file format
    for index, keys in _places(skeleton[ROOT], ()):
        if index in names:
            continue
        name = plain = ".".join(map(str, keys)) or "value"
        number = 1
        while name in taken:
            number += 1
            name = f"{plain}#{number}"
        taken.add(name)
        names[index] = name
    return [names[index] for index in sorted(names)]


def forms(tree: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name, dtype and shape of every tensor of a tree: what ``compare.differences`` takes."""
    skeleton, tensors = flatten(tree)
    return {name: form(one) for name, one in zip(paths(skeleton), tensors, strict=True)}


def form(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    """The dtype, by its name, and the shape of a tensor."""
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def is_skeleton(value: Any) -> bool:
    """Whether this is what ``flatten`` made of a tree, and no tree."""
    return isinstance(value, Mapping) and len(value) == 1 and ROOT in value


class _Taker:
    """One walk over a tree, collecting tensors."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._known: dict[int, list[int]] = {}

    def node(self, value: Any, where: tuple[Any, ...]) -> Any:
        """The skeleton of one value."""
        # The most frequent first: a state is taken apart every few steps.
        kind = type(value)
        if kind is Tensor or isinstance(value, Tensor):
            return {"tensor": self._place(value)}
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, dict | Mapping):  # dict: so that the slower question is seldom asked
            word = "counter" if isinstance(value, Counter) else "dict"
            return {word: [[_key(k, where), self.node(v, (*where, k))] for k, v in value.items()]}
        if isinstance(value, np.generic | np.ndarray):  # before float: np.float64 is one
            return _array(value, where)
        if isinstance(value, list | tuple):
            # The state of python's random is a tuple of 625 numbers, and this is a step's time.
            items: Any = value
            if not all(type(item) is int for item in items):
                items = [self.node(item, (*where, i)) for i, item in enumerate(items)]
            return list(items) if isinstance(value, list) else {"tuple": list(items)}
        if isinstance(value, bytes | bytearray):
            return {"bytes": base64.b64encode(value).decode()}
        for base in (bool, int, float, str):  # enums and other children of plain types
            if isinstance(value, base):
                return self.node(base(value), where)
        if isinstance(value, torch.dtype | torch.device):
            return {kind.__name__: str(value).removeprefix("torch.")}
        raise CheckpointError(
            f"a {kind.__name__} cannot be saved, in the state at {_name(where)}; give numbers, "
            "text, tensors, and dicts and lists of them"
        )

    def _place(self, tensor: Tensor) -> int:
        # Where memory begins tells nearly all tensors apart; the rest is asked where it does not.
        plain = type(tensor) in _PLAIN and tensor.layout is torch.strided
        start = (plain and tensor.data_ptr()) or id(tensor)
        before = self._known.setdefault(start, [])
        for index in before:
            if _same(self.tensors[index], tensor):
                return index
        before.append(len(self.tensors))
        self.tensors.append(tensor)
        return before[-1]


_PLAIN = (Tensor, torch.nn.Parameter)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors that begin at one place are the same elements, read in the same way."""
    if one is other:
        return True
    if not (one.numel() and type(one) in _PLAIN and type(other) in _PLAIN):
        return False
    ways = [(t.dtype, t.shape, t.stride(), t.device, t.is_conj(), t.is_neg()) for t in (one, other)]
    return ways[0] == ways[1]


def _key(key: Any, where: tuple[Any, ...]) -> Any:
    if isinstance(key, str):
        return str(key)
    if isinstance(key, int):
        return key if isinstance(key, bool) else int(key)
    raise CheckpointError(
        f"a dict with the key {key!r} ({type(key).__name__}) cannot be saved, in the state at "
        f"{_name(where)}; use text or whole numbers as keys"
    )


def _array(value: Any, where: tuple[Any, ...]) -> dict[str, Any]:
    if value.dtype.kind not in _ARRAY_KINDS:
        raise CheckpointError(
            f"a numpy array of dtype {value.dtype} cannot be saved, in the state at "
            f"{_name(where)}; give numbers, or lists of text"
        )
    data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
    if isinstance(value, np.ndarray):
        return {"array": [value.dtype.str, list(value.shape), data]}
    return {"number": [value.dtype.str, data]}


def _build(node: Any, tensors: Sequence[Tensor]) -> Any:
    if isinstance(node, list):
        return [_build(item, tensors) for item in node]
    if not isinstance(node, dict):
        return node
    ((word, inside),) = node.items()
    if word == "tensor":
        return tensors[inside]
    if word == "dict":
        return {key: _build(item, tensors) for key, item in inside}
    if word == "tuple":
        return tuple(_build(item, tensors) for item in inside)
    if word == "counter":
        return Counter({key: _build(item, tensors) for key, item in inside})
    return _LEAVES[word](inside)


def _numbers(inside: Any) -> Any:
    dtype, shape, data = inside
    if not isinstance(dtype, str) or np.dtype(dtype).kind not in _ARRAY_KINDS:
        raise ValueError(f"{dtype} is no dtype of numbers")
    # A copy: what frombuffer gives cannot be written to.
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape).copy()


def dtype_named(name: str) -> torch.dtype:
    """A dtype by its name, which stands in a file: nothing else of torch is found by it."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {name}")
    return found


_LEAVES: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": base64.b64decode,
    "array": _numbers,
    "number": lambda inside: _numbers([inside[0], [], inside[1]])[()],
    "dtype": dtype_named,
    "device": torch.device,
}


def _places(node: Any, keys: tuple[Any, ...]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Where each tensor stands: its index and the keys that lead to it."""
    if isinstance(node, list):
        for number, item in enumerate(node):
            yield from _places(item, (*keys, number))
    elif isinstance(node, dict):
        ((word, inside),) = node.items()
        if word == "tensor":
            yield inside, keys
        elif word in ("dict", "counter"):
            for key, item in inside:
                yield from _places(item, (*keys, key))
        elif word == "tuple":
            yield from _places(inside, keys)


def _name(where: tuple[Any, ...]) -> str:
    return ".".join(map(str, where)) or "its root"

"""Values of a failing call in a few words: shapes and types of tensors, small plain values.

No secrets: names decide, as on a command line, and well-known tokens are hidden in texts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...redaction import HIDDEN, hides, is_secret, redact_text

Facts = dict[str, Any]

_TEXT = 80
_SEARCHED_TEXT = 4096
_ENTRIES = 24
_WEIGHTS = 6
# Whole numbers of a tensor that are searched for the smallest and the largest.
_SEARCHED = 1 << 24
# Entries of a dictionary or a list that are searched for tensors.
_SEARCHED_ENTRIES = 512


def is_tensor(value: object) -> bool:
    """Whether it is a tensor; torch need not have been imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_module(value: object) -> bool:
    """Whether it is a module of torch."""
    nn = sys.modules.get("torch.nn")
    return nn is not None and isinstance(value, nn.Module)


def tensor_facts(name: str, tensor: Any) -> Facts:
    """Shape, dtype and device; of whole numbers on the CPU also the smallest and the largest."""
    facts: Facts = {
        "name": name,
        "shape": [int(size) for size in tensor.shape],
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device),
        "grad": bool(tensor.requires_grad),
    }
    if tensor.grad_fn is not None:
        facts["made_by"] = type(tensor.grad_fn).__name__
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    if whole and tensor.is_cpu and 0 < tensor.numel() <= _SEARCHED and "bool" not in facts["dtype"]:
        flat = tensor.detach().reshape(-1)
        rows = max(1, flat.numel() // max(1, int(tensor.shape[0]))) if tensor.dim() else 1
        for word, at in (("min", int(flat.argmin())), ("max", int(flat.argmax()))):
            facts[word], facts[f"{word}_row"] = int(flat[at]), at // rows
    return facts


def array_facts(name: str, array: Any) -> Facts:
    """Shape and dtype of an array of numpy."""
    return {"name": name, "shape": list(array.shape), "dtype": str(array.dtype), "device": "numpy"}


def module_facts(name: str, module: Any) -> Facts:
    """Class and weights of a module."""
    weights = first_few(module.named_parameters(), _WEIGHTS)
    return {
        "name": name,
        "module": type(module).__name__,
        "repr": _repr(module),
        "weights": {key: [int(size) for size in weight.shape] for key, weight in weights},
        "dtype": next((str(w.dtype).removeprefix("torch.") for _, w in weights), ""),
        "device": next((str(w.device) for _, w in weights), ""),
        "training": bool(module.training),
        **_use(weights),
        "lists": [
            key
            for key, held in vars(module).items()
            if isinstance(held, list | tuple | dict) and not key.startswith("_") and _hides(held)
        ],
    }


def _use(weights: list[Any]) -> Facts:
    """Whether a gradient has come to a module, and how often its first weight was changed."""
    if not weights:
        return {}
    changed = int(weights[0][1]._version)
    return {"graded": any(w.grad is not None for _, w in weights), "changed": changed}


def _hides(held: Any) -> bool:
    """Whether a plain container holds modules, which torch then does not see."""
    parts = held.values() if isinstance(held, dict) else held
    return any(map(is_module, first_few(iter(parts), 8)))


def first_few(values: Iterator[Any], count: int) -> list[Any]:
    """The first few of them."""
    return [value for _, value in zip(range(count), values, strict=False)]


def described(name: str, value: object) -> Facts:
    """A value of any kind: a tensor, an array, a module, or a short text about it."""
    try:
        return _described(name, value)
    except Exception:  # a fake tensor, a broken proxy: its name and type are known all the same
        return {"name": name, "value": type(value).__name__, "type": type(value).__name__}


def _described(name: str, value: object) -> Facts:
    if is_tensor(value):
        return tensor_facts(name, value)
    if type(value).__module__ == "numpy" and hasattr(value, "shape") and hasattr(value, "dtype"):
        return array_facts(name, value)
    if is_module(value):
        return module_facts(name, value)
    facts: Facts = {"name": name, "value": in_words(name, value), "type": type(value).__name__}
    if isinstance(value, dict) and (parts := _tensor_bytes(cast("dict[Any, Any]", value))):
        facts["parts"] = parts
    return facts


def _tensor_bytes(held: dict[Any, Any]) -> list[list[Any]]:
    """Entries of a dictionary by the bytes of the tensors in them, the largest first."""
    sizes = [
        [str(key)[:40], sum(t.numel() * t.element_size() for t in _tensors(value))]
        for key, value in first_few(iter(held.items()), _SEARCHED_ENTRIES)
    ]
    return sorted((s for s in sizes if s[1]), key=lambda pair: -pair[1])[:4]


def _tensors(held: Any, depth: int = 4) -> Iterator[Any]:
    if is_tensor(held):
        yield held
    elif depth and isinstance(held, dict | list | tuple):
        parts = cast("Any", held.values() if isinstance(held, dict) else held)
        for part in first_few(iter(parts), _SEARCHED_ENTRIES):
            yield from _tensors(part, depth - 1)


def in_words(name: str, value: object) -> str:
    """A plain value as text; of anything larger its type and size."""
    if value is None or isinstance(value, bool | int | float | complex):
        return HIDDEN if hides(name, repr(value)) else repr(value)[:_TEXT]
    if is_secret(name):
        return HIDDEN
    if isinstance(value, str | bytes | os.PathLike):
        return _without_secrets(value)
    if isinstance(value, Mapping):
        keys = [str(key)[:24] for key in first_few(iter(cast("Any", value)), 6)]
        return redact_text(f"{type(value).__name__} of {len(value)}: {', '.join(keys)}")[:_TEXT]
    if isinstance(value, list | tuple | set | frozenset):
        return _collection(name, cast("Any", value))
    return type(value).__name__


def local_facts(variables: Mapping[str, Any]) -> list[Facts]:
    """The variables of a function that say something: tensors first, then plain values."""
    found: list[tuple[int, Facts]] = []
    for name, value in variables.items():
        if name.startswith("__") or (callable(value) and not is_module(value)):
            continue
        if type(value).__name__ == "module":
            continue
        order = 0 if is_tensor(value) else 1 if is_module(value) else 2
        # The module itself is told by its class and line; its weights are many.
        if name == "self" and order == 1:
            continue
        found.append((order, described(name, value)))
    found.sort(key=lambda pair: pair[0])
    return [facts for _, facts in found[:_ENTRIES]]


def _collection(name: str, value: Any) -> str:
    kinds = sorted({type(part).__name__ for part in first_few(iter(value), 64)})
    small = len(value) <= 6 and not set(kinds) - {"int", "float", "bool", "str", "NoneType"}
    if small:
        return _without_secrets(value)
    if any(map(is_tensor, first_few(iter(value), 4))):
        shapes = [str(tuple(p.shape)) for p in first_few(iter(value), 4) if is_tensor(p)]
        more = ", …" if len(value) > 4 else ""
        return f"{type(value).__name__} of {len(value)} tensors: {', '.join(shapes)}{more}"[:_TEXT]
    return f"{type(value).__name__} of {len(value)} {'/'.join(kinds)}"[:_TEXT]


def _without_secrets(value: Any) -> str:
    # Before it is cut: half of a token is not known as one.
    return redact_text(repr(value)[:_SEARCHED_TEXT])[:_TEXT]


def _repr(module: Any) -> str:
    """``Linear(in_features=4, …)``; of a module with children only its class."""
    if next(iter(module.children()), None) is not None:
        return type(module).__name__
    try:
        return f"{type(module).__name__}({module.extra_repr()})"[:120]
    except Exception:  # the user's own code
        return type(module).__name__

"""Values of a failing call in a few words: shapes and types of tensors, small plain values.

No secrets: names decide, as on a command line, and well-known tokens are hidden in texts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ...records.crash import CrashValue
from ...redaction import HIDDEN, hides, is_secret, redact_text

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


def of_tensor(name: str, tensor: Any) -> CrashValue:
    """Shape, dtype and device; of whole numbers on the CPU also the smallest and the largest."""
    value = CrashValue(
        name=name,
        shape=tuple(int(size) for size in tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        grad=bool(tensor.requires_grad),
        made_by=None if tensor.grad_fn is None else type(tensor.grad_fn).__name__,
    )
    whole = not tensor.is_floating_point() and not tensor.is_complex()
    whole = whole and tensor.dtype is not sys.modules["torch"].bool
    if not whole or not tensor.is_cpu or not 0 < tensor.numel() <= _SEARCHED:
        return value
    flat = tensor.detach().reshape(-1)
    rows = max(1, flat.numel() // max(1, int(tensor.shape[0]))) if tensor.dim() else 1
    low, high = int(flat.argmin()), int(flat.argmax())
    return value.replace(
        min=int(flat[low]), min_row=low // rows, max=int(flat[high]), max_row=high // rows
    )


def of_array(name: str, array: Any) -> CrashValue:
    """Shape and dtype of an array of numpy."""
    return CrashValue(name=name, shape=tuple(array.shape), dtype=str(array.dtype), device="numpy")


def of_module(name: str, module: Any) -> CrashValue:
    """Class and weights of a module, and whether it was trained: gradients, changes of a weight."""
    weights = first_few(module.named_parameters(), _WEIGHTS)
    return CrashValue(
        name=name,
        module=type(module).__name__,
        repr=_repr(module),
        weights={key: tuple(int(size) for size in weight.shape) for key, weight in weights},
        dtype=next((str(w.dtype).removeprefix("torch.") for _, w in weights), ""),
        device=next((str(w.device) for _, w in weights), ""),
        training=bool(module.training),
        graded=any(w.grad is not None for _, w in weights) if weights else None,
        changed=int(weights[0][1]._version) if weights else None,
        lists=tuple(
            key
            for key, held in vars(module).items()
            if isinstance(held, list | tuple | dict) and not key.startswith("_") and _hides(held)
        ),
    )


def _hides(held: Any) -> bool:
    """Whether a plain container holds modules, which torch then does not see."""
    parts = held.values() if isinstance(held, dict) else held
    return any(map(is_module, first_few(iter(parts), 8)))


def first_few(values: Iterator[Any], count: int) -> list[Any]:
    """The first few of them."""
    return [value for _, value in zip(range(count), values, strict=False)]


def described(name: str, value: object) -> CrashValue:
    """A value of any kind: a tensor, an array, a module, or a short text about it."""
    try:
        return _described(name, value)
    except Exception:  # a fake tensor, a broken proxy: its name and type are known all the same
        return CrashValue(name=name, value=type(value).__name__, type=type(value).__name__)


def _described(name: str, value: object) -> CrashValue:
    if is_tensor(value):
        return of_tensor(name, value)
    if type(value).__module__ == "numpy" and hasattr(value, "shape") and hasattr(value, "dtype"):
        return of_array(name, value)
    if is_module(value):
        return of_module(name, value)
    parts = _tensor_bytes(cast("dict[Any, Any]", value)) if isinstance(value, dict) else ()
    return CrashValue(
        name=name, value=in_words(name, value), type=type(value).__name__, parts=parts or None
    )


def _tensor_bytes(held: dict[Any, Any]) -> tuple[tuple[str, int], ...]:
    """Entries of a dictionary by the bytes of the tensors in them, the largest first."""
    sizes = [
        (str(key)[:40], sum(t.numel() * t.element_size() for t in _tensors(value)))
        for key, value in first_few(iter(held.items()), _SEARCHED_ENTRIES)
    ]
    return tuple(sorted((s for s in sizes if s[1]), key=lambda pair: -pair[1])[:4])


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


def local_values(variables: Mapping[str, Any]) -> tuple[CrashValue, ...]:
    """The variables of a function that say something: tensors first, then plain values."""
    found: list[tuple[int, CrashValue]] = []
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
    return tuple(value for _, value in found[:_ENTRIES])


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

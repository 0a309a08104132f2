"""Compares what was put back with what a checkpoint holds, so that no mistake goes unseen.

Everything is taken once more, in the resumed process, and must give the nodes that were saved. How
a value is written may differ: in full, or by its digest where the script has made it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .digests import array_digest, tensor_digest
from .live_objects import NOT_PUT_BACK
from .nodes import KIND, MISSING, SCALARS, Node

_TENSORS = ("Tensor", "Parameter")
_FULL = {"tensor": tensor_digest, "array": array_digest}
_LONG = ("large", "list", "tuple", "set", "frozenset", "deque", "dict")
_NUMBERED = ("list", "tuple", "deque")


def difference(saved: Node, here: Node, path: str) -> str:
    """The path of the first thing that is not what it was; empty where all is."""
    if not isinstance(saved, Mapping) or not isinstance(here, Mapping):
        return "" if _is_same(saved, here) else path
    kinds = str(saved.get(KIND)), str(here.get(KIND))
    if kinds[0] == "ref":
        # Of what a script has made again by itself nothing is known but for tensors of models.
        return path if saved["c"] in _TENSORS and kinds[1] != "ref" else ""
    if kinds[0] != kinds[1]:
        return "" if _is_alike(saved, here, kinds) else path
    match kinds[0]:
        case "secret":
            return ""
        case "set" | "frozenset":
            return "" if _members(saved["v"]) == _members(here["v"]) else path
        case "optimizer":
            return _groups(saved, here, path) or _named(saved.get("a"), here.get("a"), path)
        case "pass":
            return _iterator(saved, here, path)
        case "module":
            return _module(saved, here, path)
        case _:
            return _parts(saved, here, path)


def _parts(saved: Mapping[Any, Any], here: Mapping[Any, Any], path: str) -> str:
    kind, found = saved.get(KIND), ""
    for key in saved.keys() | here.keys():
        one, other = saved.get(key), here.get(key)
        if kind == "tensor" and key == "d":
            continue  # the device
        if key == "a":
            found = found or _named(one, other, path)
        elif kind == "dict" and key == "v":
            found = found or _pairs(one, other, path)
        elif _inner(one, other, path):
            found = found or (_inner(one, other, path) if kind in _NUMBERED else path)
    return found


def _iterator(saved: Node, here: Node, path: str) -> str:
    """One over a loader: how it came to its place may be shorter than the first time."""
    then, now = saved["p"][-1], here["p"][-1]
    if (then["batches"], bool(then["over"])) != (now["batches"], bool(now["over"])):
        return path
    return _inner(saved.get("s"), here.get("s"), path)


def _pairs(saved: Any, here: Any, path: str) -> str:
    if len(saved) != len(here):
        return path
    for (key, one), (other_key, other) in zip(saved, here, strict=True):
        found = difference(one, other, f"{path}[{key!r}]" if type(key) in SCALARS else path)
        if found or _inner(key, other_key, path):
            return found or path
    return ""


def _inner(saved: Any, here: Any, path: str) -> str:
    """The same of what may be a list of nodes, at any depth."""
    if isinstance(saved, list | tuple) and isinstance(here, list | tuple):
        if len(saved) != len(here):
            return path
        pairs = enumerate(zip(saved, here, strict=True))
        found = (_inner(*pair, f"{path}[{number}]") for number, pair in pairs)
        return next(filter(None, found), "")
    return difference(saved, here, path)


def _named(saved: Any, here: Any, path: str) -> str:
    """The same of pairs of a name and a node."""
    if not isinstance(saved, list) or not isinstance(here, list):
        return _inner(saved, here, path)
    then: dict[Any, Any] = dict(saved)
    now: dict[Any, Any] = dict(here)
    if missing := sorted(map(str, then.keys() ^ now.keys())):
        return f"{path}.{missing[0].rpartition(' ')[2]}"
    found = (difference(one, now[n], f"{path}.{n.rpartition(' ')[2]}") for n, one in then.items())
    return next(filter(None, found), "")


def _module(saved: Mapping[str, Any], here: Mapping[str, Any], path: str) -> str:
    found = _named(saved["a"], here["a"], path) or _named(saved["k"], here["k"], path)
    for part in ("p", "b"):
        now = {row[0]: row[1:] for row in here[part]}
        for name, *row in saved[part]:
            wants, node = row[:-1], row[-1]
            other = now.get(name, [MISSING])
            # None: it is saved with the models, or under another name.
            skipped = node is None or other[-1] is None
            at = f"{path}.{name}"
            inner = "" if skipped else difference(node, other[-1], at)
            found = found or (inner if wants == other[:-1] else at)
    return found


def _groups(saved: Mapping[str, Any], here: Mapping[str, Any], path: str) -> str:
    then, now = (
        [[(key, one) for key, one in group if key not in NOT_PUT_BACK] for group in node["v"]]
        for node in (saved, here)
    )
    return _inner(then, now, f"{path}.param_groups")


def _is_same(saved: Any, here: Any) -> bool:
    if isinstance(saved, Tensor) and isinstance(here, Tensor):
        if saved.dtype != here.dtype or saved.shape != here.shape:
            return False
        rows = [one.detach().cpu().contiguous().reshape(-1) for one in (saved, here)]
        return torch.equal(*(one.view(torch.uint8) for one in rows)) if saved.numel() else True
    if isinstance(saved, np.ndarray) and isinstance(here, np.ndarray):
        alike = saved.dtype == here.dtype and saved.shape == here.shape
        return alike and saved.tobytes() == here.tobytes()
    # By the text: NaN is not equal to itself, and 0.0 is to -0.0.
    return type(saved) is type(here) and repr(saved) == repr(here)


def _is_alike(saved: Mapping[str, Any], here: Mapping[str, Any], kinds: tuple[str, str]) -> bool:
    """Whether one node may be another way to write what the other says."""
    if set(kinds) <= set(_LONG) and "large" in kinds:
        sizes = [one["n"] if one[KIND] == "large" else len(one["v"]) for one in (saved, here)]
        return sizes[0] == sizes[1]
    full = next((one for one in (saved, here) if one.get(KIND) in _FULL), None)
    made = next((one for one in (saved, here) if one.get(KIND) == "made"), None)
    if full is None or made is None:
        return False
    return not made["h"] or _FULL[full[KIND]](full["v"]) == made["h"]


def _members(nodes: Iterable[Any]) -> Any:
    """What can be compared of the members of a set, which have no order."""
    held = list(nodes)
    return sorted(map(repr, held)) if SCALARS.issuperset(map(type, held)) else len(held)

"""Between what objects hold and what a tree can: taking it out, and growing it on again.

Schedulers, scalers and objects of the user's own give their state as they like: lists of
functions, deques, sets. What a tree has no form for is left out and keeps the value it has live.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..shards import local, moved

NOT_SAVED = object()
"""Stands for a value that cannot be saved."""

_PLAIN = (bool, int, float, str, bytes, torch.dtype, torch.device)
_GATHERED = (set, frozenset, deque)  # saved as lists; the live object says what they were


@dataclass(slots=True)
class Notes:
    """What is learned while a state is taken."""

    names: dict[int, str] = field(default_factory=dict[int, str])
    """Of tensors already taken, by their id."""
    not_saved: set[str] = field(default_factory=set[str])
    """Names of what could not be taken."""
    loose: set[str] = field(default_factory=set[str])
    """Names of what comes and goes by itself."""
    tied: dict[str, str] = field(default_factory=dict[str, str])
    """Further names of modules and tensors, with the one they are saved under."""


def plain(value: Any, where: str, not_saved: set[str]) -> Any:
    """A value as a tree: containers copied, tensors live and without a graph.

    Args:
        value: anything.
        where: its name, for ``not_saved``.
        not_saved: takes the names of what cannot be saved. Functions and classes are code, which
            the next process has again: they are left out without a word.
    """
    kind = type(value)
    if kind is Tensor or kind is nn.Parameter or isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if kind is float or kind is int or value is None or isinstance(value, _PLAIN):
        return value
    if kind is dict or isinstance(value, Mapping):
        kept: dict[Any, Any] = {}
        for key, inner in value.items():
            if not isinstance(key, str | int):
                return _lost(value, where, not_saved)
            # The common case without the price of a call and a name.
            one = inner if type(inner) is Tensor and not inner.requires_grad else NOT_SAVED
            if one is NOT_SAVED:
                one = plain(inner, f"{where}.{key}", not_saved)
            if one is not NOT_SAVED:
                kept[key] = one
        return Counter(kept) if isinstance(value, Counter) else kept
    if isinstance(value, list | tuple | deque | set | frozenset):
        listed = [plain(one, f"{where}.{i}", not_saved) for i, one in enumerate(value)]
        if any(one is NOT_SAVED for one in listed):
            return NOT_SAVED
        return tuple(listed) if isinstance(value, tuple) else listed
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return value.copy()
    return _lost(value, where, not_saved)


def _lost(value: Any, where: str, not_saved: set[str]) -> Any:
    if not callable(value):
        not_saved.add(f"{where} ({type(value).__name__})")
    return NOT_SAVED


def restored(live: Any, saved: Any) -> Any:
    """A saved value in the form the live one has, with tensors of its own.

    For objects that take their state themselves and may keep what they are given.
    """
    if isinstance(saved, Tensor):
        device = live.device if isinstance(live, Tensor) else saved.device
        return moved(saved, device)
    if isinstance(saved, Mapping):
        own = live if isinstance(live, Mapping) else {}
        merged = {key: restored(own.get(key), one) for key, one in saved.items()}
        merged |= {key: one for key, one in own.items() if key not in saved and unsavable(one)}
        return Counter(merged) if isinstance(live, Counter) else merged
    if isinstance(saved, list | tuple):
        own = list(live) if isinstance(live, list | tuple) and len(live) == len(saved) else ()
        pairs = zip(own or [None] * len(saved), saved, strict=True)
        return _gathered(live, [restored(one, other) for one, other in pairs], saved)
    return saved.copy() if isinstance(saved, np.ndarray) else saved


def _gathered(live: Any, values: list[Any], saved: Any) -> Any:
    if isinstance(live, deque):
        return deque(values, live.maxlen)
    if isinstance(live, _GATHERED):
        return type(live)(values)
    if isinstance(saved, tuple):
        return type(live)(*values) if hasattr(type(live), "_fields") else tuple(values)
    return values


def unsavable(value: Any) -> bool:
    """Whether a live value would have been left out, so that its absence says nothing."""
    return plain(value, "", set()) is NOT_SAVED


class Copies:
    """Tensors to be written into live ones, all at once when everything has found its place."""

    def __init__(self) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._written: set[Any] = set()

    def into(self, live: Any, saved: Tensor, device: torch.device) -> Tensor:
        """The tensor that will hold the saved values: the live one where it fits, else a new one.

        A live tensor that stands in two places is written once; the second place gets its own.
        """
        if isinstance(live, Tensor) and fits(live, saved):
            part = local(live)
            key: Any = id(live)
            if type(part) in (Tensor, nn.Parameter):
                key = (part.data_ptr(), part.shape, part.stride(), part.dtype, part.device)
            if key not in self._written or not part.numel():
                self._written.add(key)
                self._pairs.append((part.detach(), local(saved).detach()))
                return live
        return moved(saved, device)

    def fill(self, live: Any, saved: Any, device: torch.device) -> Any:
        """A saved value in place of a live one: mappings and tensors keep their identity."""
        if isinstance(saved, Tensor):
            return self.into(live, saved, device)
        if isinstance(saved, Mapping) and isinstance(live, MutableMapping):
            self.forget(live, saved)
            for key, one in saved.items():
                live[key] = self.fill(live.get(key), one, device)
            return live
        if isinstance(saved, Mapping):
            return {key: self.fill(None, one, device) for key, one in saved.items()}
        if isinstance(saved, list | tuple):
            own = live if isinstance(live, list | tuple) and len(live) == len(saved) else ()
            pairs = zip(own or [None] * len(saved), saved, strict=True)
            return _gathered(live, [self.fill(one, other, device) for one, other in pairs], saved)
        return saved.copy() if isinstance(saved, np.ndarray) else saved

    @staticmethod
    def forget(live: MutableMapping[Any, Any], saved: Mapping[Any, Any]) -> None:
        """Remove what the saved mapping does not know, but for what it could not have known."""
        for key in [key for key in live if key not in saved and not unsavable(live[key])]:
            del live[key]

    @torch.no_grad()
    def write(self) -> None:
        """Write them; returns when the saved tensors may be changed again."""
        if not self._pairs:
            return
        lives = [live for live, _ in self._pairs]
        torch._foreach_copy_(lives, [saved for _, saved in self._pairs], non_blocking=True)
        for device in {live.device for live in lives if live.is_cuda}:
            torch.cuda.synchronize(device)
        self._pairs.clear()


def fits(live: Tensor, saved: Tensor) -> bool:
    """Whether the saved values can be written into the live tensor as they are."""
    return (
        live.shape == saved.shape
        and local(live).shape == local(saved).shape
        and live.dtype == saved.dtype
        and live.layout is saved.layout is torch.strided
        and not live.is_inference()
    )

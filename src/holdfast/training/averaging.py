"""A running average of the weights: often better in validation than the weights themselves.

>>> model = nn.Linear(2, 1)
>>> average = Average(model, AverageSettings(decay=0.999))
>>> _ = nn.init.zeros_(model.weight)
>>> average.update()
>>> with average.in_place(model):
...     bool(model.weight.any())
True
>>> bool(model.weight.any())
False
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..config import Section, bounded
from ..errors import CheckpointError, UsageError

_LOW = (torch.bfloat16, torch.float16)
_PORTION = 1 << 24  # numbers that are widened at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class AverageSettings(Section):
    """How slowly the average follows the weights."""

    decay: float = bounded(0.0, 0.0, 0.9999999)  # share of the old average that stays; 0: off
    warmup: bool = True  # follow faster in the first steps, which are far from the last


class Average:
    """The average of a model's parameters, with a copy of its buffers.

    Weights of 16 bits are averaged in 32: the small steps of an average would be lost in theirs.
    Weights used in two places are kept once. A decay of zero keeps nothing and costs nothing.

    Args:
        model: the model that is trained, on its device.
        settings: how slowly to follow.
    """

    def __init__(self, model: nn.Module, settings: AverageSettings) -> None:
        self._settings = settings
        self._n = 0
        on = settings.decay > 0.0
        self._live = _averaged(model) if on else {}
        self._homes = _buffers(model) if on else {}
        self._weights = {name: _copy(p, wide=True) for name, p in self._live.items()}
        self._buffers = {name: _copy(one) for name, one in self._current().items()}
        self._portions = list(_portions(self._weights, self._live))

    @property
    def n(self) -> int:
        """Updates so far."""
        return self._n

    @property
    def decay(self) -> float:
        """The share of the old average that stays in the next update."""
        wanted = self._settings.decay
        return min(wanted, (1 + self._n) / (10 + self._n)) if self._settings.warmup else wanted

    @torch.no_grad()
    def update(self) -> None:
        """A step is over: follow the weights by one update, without waiting for a device."""
        weight = 1.0 - self.decay
        self._n += 1
        for own, live in self._portions:
            wide = [p.float() for p in live] if live[0].dtype in _LOW else live
            torch._foreach_lerp_(own, wide, weight)
        for name, buffer in self._current().items():
            if buffer.shape == self._buffers[name].shape:
                self._buffers[name].copy_(buffer)
            else:  # a module has made itself another one
                self._buffers[name] = _copy(buffer)

    @contextlib.contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """Within the block the model has the averaged weights; afterwards its own, bit for bit.

        The values are exchanged, not the tensors: optimizers and compiled graphs hold those.

        Args:
            model: the model that is averaged, or a wrapper around it.
        """
        inside = {id(p) for p in model.parameters()}
        strange = [name for name, p in self._live.items() if id(p) not in inside]
        if strange:
            raise UsageError(
                f"{type(model).__name__} is not the model that is averaged: it does not hold "
                f"{strange[0]}; give the one that Average was made with, or its wrapper"
            )
        own = self._weights | self._buffers
        named = self._live | self._current()
        live = [tensor for name, tensor in named.items() if tensor.shape == own[name].shape]
        values = [own[name] for name, tensor in named.items() if tensor.shape == own[name].shape]
        kept = [_copy(tensor) for tensor in live]
        try:
            _write(live, values)
            yield
        finally:
            _write(live, kept)

    def state_dict(self) -> dict[str, Any]:
        """The average itself, not a copy of it."""
        return {"n": self._n, "weights": dict(self._weights), "buffers": dict(self._buffers)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` gave; refuses one of another model."""
        for part, own in (("weights", self._weights), ("buffers", self._buffers)):
            _check(own, state[part])
        for part, own in (("weights", self._weights), ("buffers", self._buffers)):
            for name, tensor in own.items():
                tensor.copy_(state[part][name])
        self._n = int(state["n"])

    def _current(self) -> dict[str, Tensor]:
        """The buffers as they are now: a module may have put others in their place."""
        found = {name: module._buffers[key] for name, (module, key) in self._homes.items()}
        return {name: buffer for name, buffer in found.items() if buffer is not None}


def _averaged(model: nn.Module) -> dict[str, nn.Parameter]:
    return {n: p for n, p in model.named_parameters() if p.is_floating_point() or p.is_complex()}


def _buffers(model: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Where the floating buffers that belong to a model's state live, by their names."""
    found: dict[str, tuple[nn.Module, str]] = {}
    for prefix, module in model.named_modules():
        for key, buffer in module._buffers.items():
            if buffer is None or key in module._non_persistent_buffers_set:
                continue
            if buffer.is_floating_point() or buffer.is_complex():
                found[f"{prefix}.{key}".lstrip(".")] = module, key
    return found


def _portions(
    weights: Mapping[str, Tensor], live: Mapping[str, Tensor]
) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Pairs of one dtype, in lists short enough that wider copies of them take little memory."""
    for kind in {tensor.dtype for tensor in live.values()}:
        own, theirs, size = list[Tensor](), list[Tensor](), 0
        for name in [name for name, tensor in live.items() if tensor.dtype is kind]:
            own.append(weights[name])
            theirs.append(live[name])
            size += live[name].numel()
            if size >= _PORTION:
                yield own, theirs
                own, theirs, size = [], [], 0
        if own:
            yield own, theirs


@torch.no_grad()
def _copy(tensor: Tensor, *, wide: bool = False) -> Tensor:
    kind = torch.float32 if wide and tensor.dtype in _LOW else tensor.dtype
    return tensor.detach().to(kind, copy=True)


@torch.no_grad()
def _write(live: list[Tensor], values: list[Tensor]) -> None:
    for tensor, value in zip(live, values, strict=True):
        tensor.copy_(value)


def _check(own: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    for name in [*own, *saved]:
        if name not in saved or name not in own:
            where = "saved average" if name not in saved else "model"
            raise CheckpointError(
                f"the {where} has no {name}; load the average into the model it was made from"
            )
        if own[name].shape != saved[name].shape:
            raise CheckpointError(
                f"{name} of the saved average has the shape {tuple(saved[name].shape)}, of the "
                f"model {tuple(own[name].shape)}; load it into the model it was made from"
            )

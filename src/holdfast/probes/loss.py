"""The losses of one step, taken from the tensors on which ``backward`` is called.

A step may see several backward passes (accumulation, two heads, a GAN); the row carries their
mean and whether any of them was non-finite. On a device the losses stay where they are and
travel in the device row.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Sequence

import torch
from torch import Tensor

from ..shards import local

_base_of: Callable[[Tensor], Tensor | None] = operator.attrgetter("_base")

KEPT = 64
"""Accumulation windows beyond this are folded into a running sum, so that a loop that calls
backward for ever without stepping cannot make us hold a tensor per pass."""


def scalars(tensors: object) -> list[Tensor]:
    """The scalar floating tensors among what was handed to ``backward``."""
    found = (
        tensors if isinstance(tensors, Iterable) and not isinstance(tensors, Tensor) else (tensors,)
    )
    parts = (local(t) for t in found if isinstance(t, Tensor))
    return [t for t in parts if t.numel() == 1 and t.is_floating_point()]


class Losses:
    """The losses since the last optimizer step.

    Args:
        read: whether a loss on the CPU may be read at once, which is free there.
    """

    def __init__(self, *, read: bool = True) -> None:
        self.values: list[Tensor] = []
        self.latest: Tensor | None = None
        """On a device, while its backward runs: mostly a copy is made of it when that is over."""
        self.numbers: list[float] = []
        self.passes = 0
        self.places: list[Hashable] = []
        """Where backward was called for each, where there are several optimizers."""
        self._read = read

    @classmethod
    def of(cls, values: list[Tensor], *, read: bool) -> Losses:
        """The losses of backward passes on a device, one each."""
        losses = cls(read=read)
        losses.values, losses.passes = values, len(values)
        return losses

    @property
    def count(self) -> int:
        """How many losses there are."""
        return len(self.values) + len(self.numbers) + (self.latest is not None)

    def saw(self, tensors: object) -> float | None:
        """Remember the losses of one backward pass; the last of them, where it was read."""
        self.passes += 1
        if self.latest is not None:
            self.settle()
        found: Sequence[Tensor] = ()
        if type(tensors) is Tensor and tensors.numel() == 1 and tensors.is_floating_point():
            if self._read and tensors.is_cpu and self.passes <= KEPT:
                number = tensors.item()
                self.numbers.append(number)
                return number
            if self.passes <= KEPT and not (self._read and tensors.is_cpu):
                self.latest = tensors
                return None
            found = (tensors,)
        else:
            found = scalars(tensors)
        number = None
        for loss in found:
            if self._read and loss.is_cpu:
                number = loss.item()
                self.numbers.append(number)
            else:
                self.values.append(loss.detach())
        if self.passes > KEPT or len(found) > 1:
            self._fold()
        return number

    def was(self, loss: Tensor, copy: Tensor) -> None:
        """The loss that came last is written now; ``copy`` is what it was."""
        if self.latest is loss:
            self.latest = None
            self.values.append(copy)
        elif self.values and self.values[-1].data_ptr() == loss.data_ptr():
            self.values[-1] = copy

    def settle(self) -> None:
        """Keep the latest without its graph."""
        if self.latest is not None:
            self.values.append(self.latest.detach())
            self.latest = None

    def _fold(self) -> None:
        if len(self.values) > KEPT:
            with torch.no_grad():
                self.values = [torch.stack([v.reshape(()) for v in self.values]).mean()]
        if len(self.numbers) > KEPT:
            self.numbers = [sum(self.numbers) / len(self.numbers)]

    def on_host(self) -> tuple[float, bool] | None:
        """Mean and "is one not finite"; None when reading them would touch a device."""
        self.settle()
        numbers = self.numbers
        if self.values:
            if not all(v.is_cpu for v in self.values):
                return None
            numbers = [*numbers, *(v.item() for v in self.values)]
        if len(numbers) == 1:
            return numbers[0], not math.isfinite(numbers[0])
        if not numbers:
            return math.nan, False
        return sum(numbers) / len(numbers), not all(map(math.isfinite, numbers))

    def on_device(self, device: torch.device) -> Tensor | None:
        """The mean of the losses on ``device``; one that is not finite shows in it."""
        self.settle()
        if len(self.values) == 1 and not self.numbers:
            only = self.values[0]
            return only if only.device == device else only.to(device, non_blocking=True)
        here = [v.reshape(()).to(device, non_blocking=True) for v in self.values]
        here += [torch.full((), n, device=device) for n in self.numbers]
        if len(here) > 1:
            return mean_of(here)
        return here[0] if here else None


def mean_of(losses: Sequence[Tensor]) -> Tensor:
    """The mean of several losses; in one launch where they were copied one after the other."""
    first, count = losses[0], len(losses)
    room, start = first._base, first.storage_offset()
    if (
        room is not None
        and all(map(operator.is_, map(_base_of, losses), itertools.repeat(room)))
        and [*map(Tensor.storage_offset, losses)] == [*range(start, start + count)]
    ):
        return first.as_strided((count,), (1,)).mean()
    return torch.stack(list(losses)).mean()

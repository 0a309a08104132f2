"""Averages of what the loop computes, without making the device wait for the host.

Sums grow where the numbers are. When they are asked for, they are copied beside the running
work and handed out once the copy has arrived, mostly one interval later. A loss that is not
finite takes no part: a mean that a NaN can enter says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..task import Scalars

Names = tuple[str, ...]


class StepAverages:
    """The mean of every named number since they were last taken."""

    def __init__(self) -> None:
        self._host: dict[str, list[float]] = {}
        self._device = DeviceSums()
        self._on_way: tuple[list[str], Tensor, torch.cuda.Event] | None = None
        self._latest: dict[str, float] = {}

    def add(self, values: Scalars, weight: float = 1.0) -> None:
        """Count these once more; ``weight`` is the share of this batch."""
        on_device: dict[str, Tensor] = {}
        for name, value in values.items():
            if isinstance(value, Tensor) and value.is_cuda:
                on_device[name] = value
                continue
            number = float(value.detach()) if isinstance(value, Tensor) else float(value)
            entry = self._host.setdefault(name, [0.0, 0.0])
            if math.isfinite(number):
                entry[0] += weight * number
                entry[1] += weight
        if on_device:
            self._device.add(on_device, weight)

    def take(self) -> Mapping[str, float]:
        """The newest means that are known, and begin anew; NaN where nothing was finite."""
        if self._host:
            self._latest.update({n: s / c if c else math.nan for n, (s, c) in self._host.items()})
            self._host = {}
        self._arrive()
        if self._device and self._on_way is None:
            names, rows = self._device.take()
            pinned_row = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
            pinned_row.copy_(rows, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._on_way = (names, pinned_row, event)
        return self._latest

    def peek(self) -> Mapping[str, float]:
        """The newest means that are known on the host; they go on being counted."""
        now = {n: s / c for n, (s, c) in self._host.items() if c}
        return self._latest | now

    def _arrive(self) -> None:
        if self._on_way is None or not self._on_way[2].query():
            return
        names, pinned_row, _ = self._on_way
        self._on_way = None
        self._latest.update(means(names, pinned_row.tolist()))


class DeviceSums:
    """Sums on a device of numbers that come together, a few operations however many they are."""

    def __init__(self) -> None:
        self._pairs: dict[Names, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._pairs)

    @torch.no_grad()
    def add(self, values: Mapping[str, Tensor], weight: float) -> None:
        """Count these once more."""
        row = torch.stack([value.detach().reshape(()).float() for value in values.values()])
        row = row.double()
        finite = torch.isfinite(row)
        pair = torch.stack((torch.where(finite, row, 0.0), finite.double())) * weight
        names = tuple(values)
        held = self._pairs.get(names)
        self._pairs[names] = pair if held is None else held.add_(pair)

    def take(self) -> tuple[list[str], Tensor]:
        """Names, and for each its sum and its weight; begins anew. A name may come twice."""
        names = [name for all_ranks in self._pairs for name in all_ranks]
        rows = torch.cat(list(self._pairs.values()), dim=1).mT.contiguous()
        self._pairs = {}
        return names, rows


def means(names: Sequence[str], rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """The mean of each name over all its sums; NaN where nothing was finite."""
    sums: dict[str, tuple[float, float]] = {}
    for name, (total, count) in zip(names, rows, strict=True):
        before = sums.get(name, (0.0, 0.0))
        sums[name] = before[0] + total, before[1] + count
    return {name: total / count if count else math.nan for name, (total, count) in sums.items()}

"""Averages of what the loop computes, without making the device wait for the host.

Sums grow where the numbers are. When they are asked for, they are copied beside the running
work and handed out once the copy has arrived, mostly one interval later. A loss that is not
finite takes no part: a mean that a NaN can enter says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .task import Scalars


class Readings:
    """The mean of every named number since they were last taken."""

    def __init__(self) -> None:
        self._host: dict[str, list[float]] = {}
        self._device: dict[str, Tensor] = {}
        self._on_way: tuple[list[str], Tensor, torch.cuda.Event] | None = None
        self._latest: dict[str, float] = {}

    def add(self, values: Scalars, weight: float = 1.0) -> None:
        """Count these once more; ``weight`` is the share of this batch."""
        for name, value in values.items():
            if isinstance(value, Tensor) and value.is_cuda:
                self._add_on_device(name, value.detach(), weight)
                continue
            number = float(value.detach()) if isinstance(value, Tensor) else float(value)
            entry = self._host.setdefault(name, [0.0, 0.0])
            if math.isfinite(number):
                entry[0] += weight * number
                entry[1] += weight

    def _add_on_device(self, name: str, value: Tensor, weight: float) -> None:
        with torch.no_grad():
            value = value.to(torch.float64).reshape(())
            finite = torch.isfinite(value)
            pair = torch.stack((torch.where(finite, value, 0.0), finite.double())) * weight
            held = self._device.get(name)
            self._device[name] = pair if held is None else held.add_(pair)

    def take(self) -> Mapping[str, float]:
        """The newest means that are known, and begin anew; NaN where nothing was finite."""
        if self._host:
            self._latest.update({n: s / c if c else math.nan for n, (s, c) in self._host.items()})
            self._host = {}
        self._arrive()
        if self._device and self._on_way is None:
            rows = torch.stack(list(self._device.values()))
            landing = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
            landing.copy_(rows, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self._on_way = (list(self._device), landing, event)
            self._device = {}
        return self._latest

    def _arrive(self) -> None:
        if self._on_way is None or not self._on_way[2].query():
            return
        names, landing, _ = self._on_way
        self._on_way = None
        for name, (total, count) in zip(names, landing.tolist(), strict=True):
            self._latest[name] = total / count if count else math.nan

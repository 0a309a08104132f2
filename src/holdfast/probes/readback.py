"""Bring small device vectors to the host in order, without ever waiting for them.

A vector is copied into pinned memory with ``non_blocking=True`` and followed by an event; it
is handed over once ``event.query()`` says so, usually one to three steps later. A ``PinnedRow`` is
written by the device itself and is handed over once it is complete. When every slot is still in
flight the vector is dropped and counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .norm_rows import PinnedRow, PinnedRows

SLOTS = 16

Receiver = Callable[[np.ndarray | None], None]


@dataclass(slots=True)
class _Slot:
    tensor: Tensor
    view: np.ndarray
    event: torch.cuda.Event | None
    size: int = 0


class Readback:
    """A small fleet of pinned buffers, reused for ever."""

    def __init__(self, slots: int = SLOTS) -> None:
        self.dropped = 0
        self._limit = slots
        self._made = 0
        self._free: list[_Slot] = []
        self.flying: deque[tuple[_Slot | PinnedRow | PinnedRows, Receiver]] = deque()
        """What is on its way, and who gets it."""

    def send(self, vector: Tensor | PinnedRow, then: Receiver) -> None:
        """Start the copy; ``then`` gets the numbers later, or None if they were dropped."""
        if isinstance(vector, PinnedRow):
            self.flying.append((vector, then))
            return
        slot = self._slot(vector)
        if slot is None:
            self.dropped += 1
            then(None)
            return
        slot.size = vector.numel()
        slot.tensor[: slot.size].copy_(vector, non_blocking=True)
        if slot.event is not None:
            slot.event.record(torch.cuda.current_stream(vector.device))
        self.flying.append((slot, then))

    def poll(self, *, wait: bool = False) -> None:
        """Hand over everything that has arrived; ``wait`` only at the very end of a run."""
        while self.flying:
            carrier, then = self.flying[0]
            if not isinstance(carrier, _Slot):
                values = carrier.take()
                if values is None and wait:
                    torch.cuda.synchronize()
                    values = carrier.take()
                if values is None:
                    return
            else:
                if carrier.event is not None and not carrier.event.query():
                    if not wait:
                        return
                    carrier.event.synchronize()
                values = carrier.view[: carrier.size].copy()
                self._free.append(carrier)
            self.flying.popleft()
            then(values)

    def _slot(self, vector: Tensor) -> _Slot | None:
        on_device = vector.device.type == "cuda"
        for i, slot in enumerate(self._free):
            if slot.tensor.numel() >= vector.numel() and (slot.event is not None) == on_device:
                return self._free.pop(i)
        if self._free:
            self._free.pop()  # too small for this vector: its place goes to one that fits
            self._made -= 1
        # Pinning memory makes the device wait: all slots at once, at the start.
        fresh = [_made(vector.numel(), on_device) for _ in range(self._limit - self._made)]
        self._made += len(fresh)
        self._free += fresh
        return self._free.pop() if fresh else None


def _made(count: int, on_device: bool) -> _Slot:
    # Rounded up, so that a step with a few more gradients finds a slot that fits.
    size = -(-count // 256) * 256
    tensor = torch.empty(size, dtype=torch.float64, pin_memory=on_device)
    return _Slot(tensor, tensor.numpy(), torch.cuda.Event() if on_device else None)


def read_with_event(value: Tensor) -> float:
    """A scalar, waited for through an event, which no script can forbid."""
    if not value.is_cuda:
        return float(value.detach().numpy())
    pinned = torch.empty((), dtype=torch.float64, pin_memory=True)
    pinned.copy_(value.detach().double().reshape(()), non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(value.device))
    event.synchronize()
    return float(pinned.numpy())


def wait_for(flag: Tensor) -> bool:
    """Whether a flag is raised; waits for it."""
    return read_with_event(flag) != 0

"""What weights, gradients and optimizer state take, for the memory plot of a report."""

from __future__ import annotations

from torch import Tensor, is_tensor

from ..training import Training

KIND = "memory_parts"
"""The Event: bytes of each part, and the type of the device they are on."""

# The first reading is made when optimizers have their state and gradients have been made.
_FIRST = 8
# A part that changed by less is not worth another Event.
_CHANGE = 0.01


class MemoryParts:
    """Adds up the tensors of all optimizers, on steps further and further apart.

    Some microseconds for each tensor, on step 8, 16, 32 and so on.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._due = _FIRST
        self._told: dict[str, int] = {}

    def step_ended(self, step: int) -> None:
        """Record the parts if it is time and they have changed."""
        if step < self._due:
            return
        self._due = 2 * step
        try:
            parts, device = self._measured()
        except Exception:  # an optimizer or a tensor of an unknown kind: a plot goes without it
            return
        if parts and any(
            abs(size - self._told.get(name, 0)) > _CHANGE * size for name, size in parts.items()
        ):
            self._told = parts
            self._training.record(KIND, {**parts, "device": device})

    def _measured(self) -> tuple[dict[str, int], str]:
        weights, gradients, state, device = 0, 0, 0, ""
        seen: set[int] = set()
        for optimizer, _ in self._training.optimizers():
            for p in (p for group in optimizer.param_groups for p in group["params"]):
                if id(p) in seen:  # two optimizers may share it
                    continue
                seen.add(id(p))
                device = device or p.device.type
                weights += _size(p)
                gradients += _size(p.grad) if p.grad is not None else 0
                values = optimizer.state.get(p, {}).values()
                state += sum(_size(value) for value in values if is_tensor(value))
        parts = {"weights": weights, "gradients": gradients, "optimizer state": state}
        return (parts if weights else {}), device


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()

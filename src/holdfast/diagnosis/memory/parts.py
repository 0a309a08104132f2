"""What weights, gradients and optimizer state take, for the memory plot of a report."""

from __future__ import annotations

from torch import Tensor, is_tensor

from ...records.memory import PartSizes
from ..training import Training

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
        self._last: PartSizes | None = None

    def step_ended(self, step: int) -> None:
        """Record the parts if it is time and they have changed."""
        if step < self._due:
            return
        self._due = 2 * step
        try:
            parts = self._measured()
        except Exception:  # an optimizer or a tensor of an unknown kind: a plot goes without it
            return
        if parts.weights and _differs(parts, self._last):
            self._last = parts
            self._training.record(parts)

    def _measured(self) -> PartSizes:
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
        return PartSizes(weights=weights, gradients=gradients, optimizer_state=state, device=device)


def _differs(parts: PartSizes, last: PartSizes | None) -> bool:
    """Whether one of the sizes is another one than when it was recorded last."""
    before = (last.weights, last.gradients, last.optimizer_state) if last else (0, 0, 0)
    now = parts.weights, parts.gradients, parts.optimizer_state
    return any(abs(a - b) > _CHANGE * a for a, b in zip(now, before, strict=True))


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()

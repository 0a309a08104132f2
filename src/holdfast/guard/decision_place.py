"""Where a step is decided: on the host, or on the device that has the gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..records import Kind
from ..records.run import NotCovered


class DecisionPlace:
    """Looks at the gradients of one optimizer, again when they are those of other parameters.

    Args:
        notes: for the record.
        device_path: whether the CPU counts as a device.
    """

    def __init__(self, notes: list[Kind], *, device_path: bool) -> None:
        self._notes, self._device_path = notes, device_path
        # Which parameters have gradients, the device of the first, and the place for them.
        self._known: tuple[Sequence[int], torch.device, torch.device | None] | None = None

    def at(self, home: torch.device) -> torch.device | None:
        """For shares of ranks that live there; None means on the host."""
        return home if home.type == "cuda" or self._device_path else None

    def of(
        self, grads: Sequence[Tensor], positions: Sequence[int], *, first: bool
    ) -> torch.device | None:
        """For gradients of the parameters at ``positions``; None means on the host.

        ``first`` says that no step has been decided so far.
        """
        known, device = self._known, grads[0].device
        if known is not None and known[0] is positions and known[1] == device:
            return known[2]
        kinds = {g.device.type for g in grads}
        if kinds == {"cuda"} or (self._device_path and kinds == {"cpu"}):
            self._known = (positions, device, device)
            return device
        if kinds != {"cpu"} and first:
            where = ", ".join(sorted(kinds))
            why = f"gradients live on {where}: one host read per step"
            self._notes.append(NotCovered(what="sync-free guarding", why=why))
        self._known = (positions, device, None)
        return None

"""The events with the largest losses, however many there are to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class BadEvent(NamedTuple):
    """One event, its loss, and what is needed to draw it."""

    loss: float
    event: int
    arrays: Mapping[str, np.ndarray]


class WorstEvents:
    """Keeps the worst of all events offered, worst first; a loss that is no number is worst.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int = 10) -> None:
        self.most = most
        self._kept: list[BadEvent] = []

    def offer(self, loss_B: Tensor, event_B: Tensor, arrays: Mapping[str, Tensor]) -> None:
        """Look at a batch; arrays have one row for each event. Only rows that stay are copied."""
        ranked_B = torch.nan_to_num(loss_B.detach().float(), nan=torch.inf)
        chosen = ranked_B.sort(descending=True, stable=True).indices[: self.most]
        losses, events = ranked_B[chosen].tolist(), event_B[chosen].tolist()
        new = [
            (loss, event, row)
            for loss, event, row in zip(losses, events, chosen.tolist(), strict=True)
            if len(self._kept) < self.most or loss > self._kept[-1].loss
        ]
        for loss, event, row in new:
            copied = {name: one[row].detach().cpu().numpy().copy() for name, one in arrays.items()}
            self._kept.append(BadEvent(loss, event, copied))
        # Numbers are the whole key: of equal losses the arrays are never compared.
        self._kept.sort(key=lambda one: (-one.loss, one.event))
        del self._kept[self.most :]

    def worst(self) -> list[BadEvent]:
        """What was kept, worst first."""
        return list(self._kept)

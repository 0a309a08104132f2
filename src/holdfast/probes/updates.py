"""How far a step moved each layer, as a share of its size; looked at now and then.

Healthy training moves a weight by about a thousandth of its norm per step. A layer that moves
by a tenth is being torn apart, one that moves by a millionth is standing still. Measuring it
takes a copy of the weights, so a step looks at a few layers only and the next one goes on from
there; on a GPU only as far as the allocator has the memory in hand already. Of a weight that is
spread over ranks each rank looks at its own part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..shards import local

# One step in this many is looked at, and this much is copied there.
EVERY = 64
_HOST_BYTES = 2 << 20
_DEVICE_BYTES = 64 << 20


@dataclass(slots=True)
class Before:
    """Some weights as they were before a step."""

    positions: list[int]
    live: list[Tensor]
    copies: list[Tensor]

    def ratios(self) -> Tensor:
        """Norm of the change over norm of the weight, fp64, where the weights are."""
        moved = torch._foreach_norm(torch._foreach_sub(self.live, self.copies), 2, torch.float64)
        sizes = torch._foreach_norm(self.copies, 2, torch.float64)
        # Of nothing there is no share: a bias that starts at zero is NaN, which is "not known".
        size = torch.stack(sizes)
        return torch.where(size > 0, torch.stack(moved) / size, torch.nan)


class UpdateSizes:
    """Takes its turn through the layers of one optimizer."""

    def __init__(self) -> None:
        self._next = 0

    def before(self, parameters: Sequence[Tensor]) -> Before | None:
        """Copy the layers whose turn it is; None when there is nothing to look at."""
        start = self._next % max(1, len(parameters))
        home = parameters[start].device
        room = _HOST_BYTES if home.type == "cpu" else _room_on(home)
        positions: list[int] = []
        live: list[Tensor] = []
        for i in range(start, len(parameters)):
            weight = local(parameters[i]).detach()
            if weight.device != home or type(weight) is not Tensor or not weight.numel():
                continue
            size = weight.numel() * weight.element_size()
            if size > room:
                if positions or not weight.is_contiguous() or not weight.is_floating_point():
                    break
                # Too large alone: its beginning stands for it.
                weight = weight.view(-1)[: room // weight.element_size()]
            if weight.is_floating_point() and weight.numel():
                positions.append(i)
                live.append(weight)
                room -= size
        self._next = positions[-1] + 1 if positions else start + 1
        if not positions:
            return None
        return Before(positions, live, [t.clone() for t in live])


def _room_on(device: torch.device) -> int:
    """A quarter of what the allocator holds unused: asking the driver for more could fail."""
    if device.type != "cuda":
        return 0
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_DEVICE_BYTES, unused // 4)

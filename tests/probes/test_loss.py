"""Losses of one step."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.probes.loss import mean_of


def test_the_mean_of_losses_wherever_they_lie():
    room = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    a, b, c, d, e = room.unbind()
    apart = [torch.tensor(1.0), torch.tensor(2.5)]
    every = ([a, b, c], [b, c, d, e], [c, b, a], [a, a, c], [a, c], [a, apart[0]], apart)
    for losses in every:
        assert mean_of(losses) == torch.stack(losses).mean()
    launched: list[str] = []

    class Launches(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            launched.append(str(func))
            return func(*args, **(kwargs or {}))

    with Launches():
        mean_of([b, c, d, e])
    assert not any("stack" in name or "cat" in name for name in launched)

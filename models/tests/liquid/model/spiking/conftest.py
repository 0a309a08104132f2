import pytest
import torch
from torch import Tensor

from holdfast_models.liquid.model.spiking.lif import LIF
from holdfast_models.liquid.model.spiking.surrogates import spike


def _loop(lif: LIF, current: Tensor, membrane: Tensor | None = None) -> tuple[Tensor, Tensor]:
    u = torch.zeros_like(current[0]) if membrane is None else membrane
    train, membranes = [], []
    for i in current.unbind(0):
        fired = (u > lif.threshold).to(u.dtype).detach()
        if lif.reset == "subtract":
            u = lif.beta * u + i - fired * lif.threshold
        elif lif.reset == "zero":
            u = lif.beta * (u * (1 - fired)) + i
        else:
            u = lif.beta * u + i
        train.append(spike(u - lif.threshold, lif.surrogate, lif.slope))
        membranes.append(u)
    return torch.stack(train), torch.stack(membranes)


@pytest.fixture
def lif_loop():
    """The recurrence as it is written: spikes and membranes that ``LIF.run`` must equal."""
    return _loop

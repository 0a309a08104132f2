"""Work in place as a CUDA graph: the same results, and a new beginning where tensors moved."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast_models.liquid.graphed import Graphed
from holdfast_models.liquid.plasticity.plasticity import Plasticity
from holdfast_models.liquid.plasticity.synapses import PlasticLinear


def test_without_a_device_it_is_the_function() -> None:
    total = torch.zeros(2)

    def add(x: Tensor) -> tuple[Tensor]:
        total.add_(x)
        return (total.clone(),)

    graphed = Graphed(add, on=False)
    results = [graphed(torch.tensor([1.0, float(k)]))[0] for k in range(4)]
    assert [one.tolist() for one in results] == [[1, 0], [2, 1], [3, 3], [4, 6]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replays_do_what_calls_do() -> None:
    places = [torch.zeros(2, device="cuda")]

    def add(x: Tensor) -> tuple[Tensor]:
        places[0].add_(x)
        return (places[0] * 2,)

    graphed = Graphed(add, on=True, touches=lambda: places)
    x = torch.ones(2, device="cuda")
    assert [float(graphed(k * x)[0][0]) for k in range(6)] == [0, 2, 6, 12, 20, 30]
    places[0] = torch.zeros(2, device="cuda")
    assert [float(graphed(x)[0][0]) for _ in range(5)] == [2, 4, 6, 8, 10]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_fast_weights_move_the_same() -> None:
    found = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        synapse = PlasticLinear(5, 4).to(device)
        plasticity = Plasticity([synapse], interval=1)
        for step in range(1, 7):
            synapse.seen = tuple(torch.rand(3, 8, n).to(device) for n in (5, 4))  # type: ignore[assignment]
            plasticity.step(step, allowed=step != 5)
        found.append([synapse.fast.cpu(), plasticity.last["norm"].cpu()])
    assert found[0][0].any()
    for own, theirs in zip(*found, strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-6, rtol=1e-4)

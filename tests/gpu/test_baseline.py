"""The run's own scale, judged inside the measuring kernel: the same answers as on the host."""

from __future__ import annotations

import math
import random

import pytest
import torch

from holdfast.probes.baseline import SKIP, Baseline
from holdfast.probes.device_baseline import JudgedStep, Terms, fresh_state
from holdfast.probes.gradients import NormMeter
from holdfast.probes.readback import Readback

from ..probes.test_baseline import ask, eventful
from .test_guard import no_syncs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def gradients(norm: float, count: int) -> list[torch.Tensor]:
    """Tensors of several sizes whose joint norm is given."""
    parts = [torch.zeros(n, device="cuda") for n in (1, 7, 70_000, 1000)[:count]]
    for part in parts:
        part[0] = norm / math.sqrt(count)
    return parts


@pytest.mark.parametrize("way", ["kernel", "afterwards", "plain"])
@pytest.mark.parametrize("count", [1, 4])
def test_same_answers_as_on_the_host(way: str, count: int) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    norm_meter, host, state = NormMeter(device), Baseline(20, refresh=0), fresh_state(device)
    norm_meter._no_kernel = way == "plain"
    seen: list[list[float] | None] = []
    readback = Readback()
    asked = JudgedStep(state, Terms(20, clip=3.0))
    pairs = list(eventful(random.Random(1), 400))
    flags: list[torch.Tensor] = []
    grads = [gradients(norm, count) for _, norm in pairs]
    losses = [torch.tensor(loss, device="cuda", dtype=torch.float64) for loss, _ in pairs]
    norm_meter.measure(grads[0], None, loss_decides=True)  # compiled, slots pinned

    def step(i: int) -> None:
        early = way == "afterwards"
        reading = norm_meter.measure(
            grads[i],
            losses[i],
            loss_decides=True,
            extras=None if early else (),
            asked=None if early else asked,
        )
        if early:
            norm_meter.judge(reading, asked)
        flags.append(reading.flag)
        readback.send(reading.row, lambda values: seen.append(reading.answer(values)))  # type: ignore[arg-type]

    step(0)
    torch.cuda.synchronize()
    readback.poll()
    with no_syncs():
        for i in range(1, len(pairs)):
            step(i)
            if i % 8 == 0:
                # What a training step would give the device time for.
                while readback.flying and len(readback.flying) > 8:
                    readback.poll()
    torch.cuda.synchronize()
    readback.poll(wait=True)
    assert len(seen) == len(pairs)
    for (loss, norm), answer, flag in zip(pairs, seen, flags, strict=True):
        assert answer is not None
        if math.isnan(norm):
            assert answer[4] == 0
            assert float(flag) == 1
            continue
        bits = ask(host, loss, norm)
        assert int(answer[4]) == bits, (loss, norm, answer)
        assert float(flag) == bool(bits & SKIP)
        assert answer[:4] == pytest.approx(host.numbers, rel=1e-4, nan_ok=True)
        if not bits & SKIP:
            assert answer[5] == pytest.approx(min(1.0, 3.0 / (norm + 1e-6)), rel=1e-4)

"""The calm scale on a device: the same numbers as on the host, and nothing is waited for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.actions.scaler_policy import apply_scaler_policy

from .test_guard import no_syncs

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


def test_overflows_floor_and_explosions_without_a_host_read() -> None:
    scaler = apply_scaler_policy("cuda")
    net = nn.Linear(4, 1, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    x = torch.randn(8, 4, device="cuda")
    scales: list[torch.Tensor] = []

    def step(factor: float = 1.0, outlier: float = 0.0) -> None:
        optimizer.zero_grad()
        scaler.scale(net(x).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.policy.explosion(bits[int(outlier)])  # type: ignore[attr-defined]
        scaler.update()
        scales.append(scaler.scale(one).clone())

    bits, one = torch.arange(4.0, device="cuda"), torch.ones((), device="cuda")
    step()
    with no_syncs():
        for _ in range(3):
            step(float("inf"))
        step(outlier=3)
        for _ in range(30):
            step(float("inf"))
        step(outlier=2)
    seen = [float(s) for s in scales]
    assert seen[:5] == pytest.approx([1024.0, 512.0, 256.0, 128.0, 12.8])
    assert seen[-2:] == [1.0, 1.0]
    assert all(bool(p.isfinite().all()) for p in net.parameters())

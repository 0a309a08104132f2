"""States on a device: random numbers, counters where the optimizer wants them, copies in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoint.training_state import TrainingState
from holdfast.checkpoint.tree import flatten, unflatten

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "capturable": lambda p: torch.optim.NAdam(p, lr=1e-2, capturable=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).cuda()


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses: list[float] = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(4, 8, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def on_host(state: Any) -> Any:
    skeleton, tensors = flatten(state)
    return unflatten(skeleton, [t.detach().cpu().clone() for t in tensors])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("fresh", [False, True], ids=["same objects", "new objects"])
def test_the_same_losses_again(kind: str, fresh: bool) -> None:
    torch.manual_seed(0)
    net = model()
    optimizer = OPTIMIZERS[kind](net.parameters())
    train(net, optimizer, 3)
    devices = {k: v.device for k, v in next(iter(optimizer.state.values())).items()}
    saved = on_host(TrainingState({"m": net}, [optimizer]).state())
    first = train(net, optimizer, 4)
    if fresh:
        net = model()
        optimizer = OPTIMIZERS[kind](net.parameters())
    TrainingState({"m": net}, [optimizer]).put_back(saved)
    assert {k: v.device for k, v in next(iter(optimizer.state.values())).items()} == devices
    assert train(net, optimizer, 4) == first


def test_counters_follow_the_form_of_the_live_optimizer() -> None:
    """Saved from a switched optimizer, put back into one that is not, and the other way round."""
    nets = [model(), model()]
    fused = torch.optim.AdamW(nets[0].parameters(), fused=True)
    plain = torch.optim.AdamW(nets[1].parameters())
    for net, optimizer in zip(nets, (fused, plain), strict=True):
        train(net, optimizer, 2)
    states = [
        on_host(TrainingState({"m": n}, [o]).state())
        for n, o in zip(nets, (fused, plain), strict=True)
    ]
    new_plain = torch.optim.AdamW(nets[0].parameters())
    new_fused = torch.optim.AdamW(nets[1].parameters(), fused=True)
    TrainingState({"m": nets[0]}, [new_plain]).put_back(states[0])
    TrainingState({"m": nets[1]}, [new_fused]).put_back(states[1])
    assert all(state["step"].is_cpu for state in new_plain.state.values())
    assert all(state["step"].is_cuda for state in new_fused.state.values())
    train(nets[0], new_plain, 1)
    train(nets[1], new_fused, 1)


def test_a_watched_loop_is_resumed(tmp_path: Path) -> None:
    """The state is copied while the next steps are already on their way."""
    data = torch.utils.data.TensorDataset(torch.randn(64, 8))
    losses: list[list[float]] = []
    for resume in (None, True):
        torch.manual_seed(3)
        net = model()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(data, 8, shuffle=True)
        seen: list[float] = []
        with holdfast.watch(
            net, optimizer, run_dir=tmp_path / "run", resume=resume, say=lambda s: None
        ) as watch:
            for _ in watch.epochs(3):
                for (x,) in watch(loader):
                    loss = net(x.cuda()).square().mean()
                    watch.backward(loss)
                    watch.step()
                    seen.append(loss.item())
                    if resume is None and len(seen) == 11:
                        watch.save()
            watch._close(RuntimeError("stopped"))
        losses.append(seen)
    assert losses[1] == losses[0][11:]

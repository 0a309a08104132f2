"""A watched loop that ends early: its last state is saved, and never resumed from by surprise."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError


def crashed(folder: Path, steps: int, said: list[str] | None = None) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loader = [torch.randn(8, 4) for _ in range(steps + 1)]
    say = [].append if said is None else said.append
    with (
        pytest.raises(ValueError, match="its own"),
        holdfast.watch(net, optimizer, run_dir=folder, say=say) as watch,
    ):
        for number, x in enumerate(watch(loader)):
            loss = net(x).square().mean()
            if number == steps:
                raise ValueError("its own")
            watch.backward(loss)
            watch.step()
    return net


def names(folder: Path) -> list[tuple[int, str]]:
    entries = CheckpointStore(folder / "checkpoints").entries()
    return [(entry.step, entry.record["kind"]) for entry in entries]


def test_an_exception_in_a_with_block_leaves_the_weights(tmp_path: Path) -> None:
    said: list[str] = []
    net = crashed(tmp_path / "run", 20, said)
    assert " state after 20 steps, " in said[-1] and "holdfast.load_checkpoint(" in said[-1]
    assert names(tmp_path / "run") == [(20, "last")]
    state = holdfast.load_checkpoint(tmp_path / "run")
    assert state["step"] == 19
    other = nn.Linear(4, 1)
    other.load_state_dict(state["model"])
    assert torch.equal(other.weight, net.weight)  # type: ignore[arg-type]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_resume_takes_the_exact_checkpoint_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    crashed(folder, 20)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    said: list[str] = []
    with pytest.raises(CheckpointError, match="no good checkpoint"):
        holdfast.watch(net, optimizer, run_dir=folder, resume=True, say=said.append)
    assert "is the state that a run ended with" in said[0]

    path = folder / "checkpoints" / "step-0000000020.r0.safetensors"
    watch = holdfast.watch(net, optimizer, run_dir=folder, resume=path, say=said.append)
    assert watch.engine.steps == 20
    assert torch.equal(net.weight, holdfast.load_checkpoint(path)["model"]["weight"])
    watch.close()
    assert names(folder) == [(20, "last")]

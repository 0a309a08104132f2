"""Whatever ends a training early leaves its weights, and plain PyTorch goes on from them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

import holdfast

from .conftest import Bench, await_line, child_of

# The model lives in a function: at the exit it is held by the traceback alone, or by nothing.
SCRIPT = """
import os, signal, sys, time
import torch
from torch import nn

def train(how):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    x = torch.randn(400, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    for step, (x, y) in enumerate(torch.utils.data.DataLoader(data, 8, shuffle=True)):
        loss = nn.functional.mse_loss(net(x), y)
        if step == 20:
            torch.save((x, y, loss.detach()), how + ".pt")
            print("ready", flush=True)
            if how == "crash":
                raise ValueError("the script's own")
            time.sleep(60)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1 if how == "killed" else 0)

train(sys.argv[1])
"""


def go_on(bench: Bench, how: str, run: Path) -> None:
    """What the three lines of the summary say."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the script: another number may round otherwise
    x, y, expected = torch.load(bench.folder / f"{how}.pt")
    net = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.Adam(net.parameters())
    state = holdfast.load_checkpoint(run)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"]["torch"])
    assert state["step"] == 19
    loss = torch.nn.functional.mse_loss(net(x), y)
    torch.set_num_threads(threads)
    assert torch.equal(loss, expected)


def test_a_crash_ctrl_c_and_sigterm_leave_the_weights(bench: Bench) -> None:
    script = bench.write(SCRIPT)
    ends = {"crash": None, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
    running = {}
    for how in ends:
        words = ["-m", "holdfast", "run", "--run-dir", f"run-{how}", script, how]
        running[how] = bench.start(words)
    for how, number in ends.items():
        await_line(running[how], b"ready")
        if number is not None:
            running[how].send_signal(number)
    for how, number in ends.items():
        seen = bench.end(running[how])
        assert seen.code == (1 if number is None else -number)
        assert f"run-{how}/checkpoints/step-0000000019.r0.safetensors" in seen.reported
        load = "to load it see the report" if how == "crash" else "model.load_state_dict("
        assert load in " ".join(seen.reported.split())
        go_on(bench, how, bench.folder / f"run-{how}")


@pytest.mark.slow
def test_kill_loses_at_most_the_interval(bench: Bench) -> None:
    script = bench.write(SCRIPT)
    process = bench.start_guarded(script, "killed", options=["--set", "checkpoint.steps=5"])
    await_line(process, b"ready")
    os.kill(child_of(process), signal.SIGKILL)
    assert bench.end(process).code == -signal.SIGKILL
    assert holdfast.load_checkpoint(bench.path)["step"] >= 14


@pytest.mark.slow
def test_workers_of_a_loader_end_at_once_and_save_nothing(bench: Bench) -> None:
    script = bench.write(SCRIPT.replace("shuffle=True)", "shuffle=True, num_workers=2)"))
    process = bench.start_guarded(script, "workers")
    await_line(process, b"ready")
    process.send_signal(signal.SIGTERM)
    assert bench.end(process).code == -signal.SIGTERM
    assert len(list((bench.path / "checkpoints").glob("*.safetensors"))) == 1


CHILD = """
if __name__ == "__main__":
    import torch.multiprocessing as mp
    if sys.argv[1] == "spawn":
        mp.spawn(in_child, args=("crash",), nprocs=1)
    else:
        one = mp.get_context("fork").Process(target=train, args=("crash",))
        one.start()
        one.join()
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_children_of_multiprocessing_leave_their_weights_too(bench: Bench, how: str) -> None:
    script = SCRIPT.replace("train(sys.argv[1])", "def in_child(rank, how):\n    train(how)\n")
    bench.guarded(bench.write(script + CHILD), how)
    go_on(bench, "crash", bench.path)

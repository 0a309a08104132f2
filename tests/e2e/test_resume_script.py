"""``holdfast run --resume`` of an unmodified script that was killed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from holdfast.run import Run

from .conftest import Bench, Outcome

SCRIPT = textwrap.dedent("""
    import os, signal, sys, time
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(0)
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(96, 6, generator=g)
    loader = DataLoader(TensorDataset(x, x.sum(1) > 0), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    model.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    best = 9.0
    for epoch in range(4):
        losses = []
        for i, (a, b) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(a), b.long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if epoch == 2 and i == 7 and os.path.exists("die"):
                time.sleep(1.5)
                os.kill(os.getpid(), signal.SIGKILL)
        schedule.step()
        best = min(best, sum(losses) / len(losses))
        print(epoch, i, best, schedule.get_last_lr())
    print("end", [float(p.double().sum()) for p in model.parameters()], torch.rand(1).item())
""")


def run(folder: Path, *options: str) -> Outcome:
    bench = Bench(folder)
    words = ["-m", "holdfast", "run", *options, "script.py"]
    return bench.end(bench.start(words, env={"HOLDFAST_PLUGINS": "none"}))


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_as_if_nothing_had_happened(tmp_path: Path):
    (tmp_path / "script.py").write_text(SCRIPT)
    whole = run(tmp_path, "--run-dir", "whole", "--set", "checkpoint.steps=10")
    assert whole.code == 0, whole.reported
    (tmp_path / "die").touch()
    killed = run(tmp_path, "--set", "checkpoint.steps=10")
    assert killed.code == -9
    (name,) = [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert f"go on   holdfast run --resume runs/{name} script.py" in killed.reported
    (tmp_path / "die").unlink()
    resumed = run(tmp_path, "--resume", "auto")
    assert resumed.code == 0, resumed.reported
    assert resumed.out == whole.out
    assert f"goes on from runs/{name} after step 30" in resumed.reported
    assert "bit for bit" in resumed.reported
    assert Run.latest(tmp_path / "runs").meta["resumed_from"]["step"] == 30
    anew = run(tmp_path, "--resume", "auto")
    assert anew.code == 0 and "has finished; starts anew" in anew.reported


def test_a_run_that_cannot_be_resumed_is_one_line(tmp_path: Path):
    (tmp_path / "script.py").write_text("print('never')")
    Run.create(tmp_path / "old", {"command": ["script.py"], "status": "finished", "exit_code": 1})
    refused = run(tmp_path, "--resume", "old")
    assert refused.code == 2 and not refused.out
    assert refused.reported == (
        "holdfast: error: cannot resume old: no checkpoint was written yet; start anew without "
        "--resume\n"
    )
    Run.create(tmp_path / "other", {"command": ["script.py", "--lr", "1"]})
    refused = run(tmp_path, "--resume", "other")
    assert refused.code == 2 and "it ran `script.py --lr 1`, not `script.py`" in refused.reported


def ended_by(folder: Path, script: str, step: int = 31, code: int = -15) -> None:
    """A script that is sent a signal amid a step goes on from that step, bit for bit."""
    (folder / "script.py").write_text(script)
    whole = run(folder, "--run-dir", "whole")
    assert whole.code == 0, whole.reported
    (folder / "die").touch()
    ended = run(folder)
    assert ended.code == code, ended.reported
    assert f"step-{step:010d}.r0.safetensors\n" in ended.reported
    assert f" state after step {step}, " in ended.reported
    (name,) = [path.name for path in (folder / "runs").iterdir() if path.is_dir()]
    assert f"go on   holdfast run --resume runs/{name} script.py" in ended.reported
    (folder / "die").unlink()
    resumed = run(folder, "--resume", "auto")
    assert resumed.code == 0, resumed.reported
    assert resumed.out == whole.out
    assert f"goes on from runs/{name} after step {step}" in resumed.reported
    assert "bit for bit" in resumed.reported


# Amid the step: forward and backward are through, the optimizer is not.
SIGTERM = SCRIPT.replace("signal.SIGKILL", "0").replace(
    "loss.backward()",
    """loss.backward()
        if epoch == 2 and i == 7 and os.path.exists("die"):
            os.kill(os.getpid(), signal.SIGTERM)""",
)


def test_sigterm_amid_a_step_costs_no_step(tmp_path: Path):
    ended_by(tmp_path, SIGTERM)


def test_ctrl_c_amid_a_step_costs_no_step(tmp_path: Path):
    ended_by(tmp_path, SIGTERM.replace("SIGTERM", "SIGINT"), code=-2)


def test_ctrl_c_between_two_passes_costs_no_step(tmp_path: Path):
    """As in a validation: the first batch of the next pass after which it can be resumed."""
    killed = """
    schedule.step()
    if epoch == 1 and os.path.exists("die"):
        os.kill(os.getpid(), signal.SIGINT)"""
    script = SCRIPT.replace("signal.SIGKILL", "0").replace("\n    schedule.step()", killed)
    ended_by(tmp_path, script, step=24, code=-2)


@pytest.mark.slow
def test_workers_that_get_it_too_do_not_disturb(tmp_path: Path):
    """As from `timeout`, or from a scheduler that signals a whole job."""
    script = SIGTERM.replace("import os,", "import multiprocessing, os,")
    script = script.replace("shuffle=True)", "shuffle=True, num_workers=2)")
    script = script.replace(
        "            os.kill(os.getpid(), signal.SIGTERM)",
        """            [os.kill(p.pid, 15) for p in multiprocessing.active_children()]
            os.kill(os.getpid(), signal.SIGTERM)""",
    )
    ended_by(tmp_path, script)


@pytest.mark.slow
def test_sigterm_while_the_loop_waits_for_its_loader(tmp_path: Path):
    """The worker that lets it wait would take longer than any grace period."""
    script = SCRIPT.replace("signal.SIGKILL", "0").replace("shuffle=True)", "num_workers=1)")
    script = script.replace("loader = DataLoader(TensorDataset(", "loader = DataLoader(Slow(")
    slow = """
class Slow(TensorDataset):
    def __getitem__(self, i):
        if i == 50 and os.path.exists("die"):
            time.sleep(2)
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(60)
        return super().__getitem__(i)
loader ="""
    ended_by(tmp_path, script.replace("\nloader =", slow), step=5)

"""``holdfast.watch`` in a loop of one's own: the same guard, the same run folder."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast import config
from holdfast.errors import SettingsError, UsageError
from holdfast.run import LaneReader, Run


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)


def loader(count: int = 64, poisoned: int = 21) -> torch.utils.data.DataLoader[Any]:
    x = torch.randn(count, 4)
    x[poisoned] = math.nan
    data = torch.utils.data.TensorDataset(x, torch.randn(count, 1))
    return torch.utils.data.DataLoader(data, 8)


def test_options_of_detectors_are_checked_at_once_and_recorded(tmp_path: Path) -> None:
    net, opt = model_and_optimizer()
    with pytest.raises(SettingsError, match=r"detectors.MEM007.reading'; did you mean"):
        holdfast.watch(net, opt, settings=config.load(None, ["detectors.MEM007.reading=4"]))
    settings = config.load(None, ["detectors.scaler_collapse.streak=3"])
    with holdfast.watch(net, opt, run_dir=tmp_path / "run", settings=settings) as watch:
        net(torch.randn(8, 4)).sum().backward()
        opt.step()
    assert watch.run is not None
    recorded = watch.run.meta["settings"]["detectors"]["options"]
    assert recorded == {"NUM006": {"streak": 3}}


def test_a_loop_is_guarded_recorded_and_explained(tmp_path: Path) -> None:
    net, opt = model_and_optimizer()
    said: list[str] = []
    with holdfast.watch(net, opt, run_dir=tmp_path / "run", say=said.append) as watch:
        for x, y in watch(loader()):
            loss = nn.functional.mse_loss(net(x), y)
            watch.backward(loss)
            watch.step()
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert watch.skipped == 1
    rows = LaneReader(Run.open(tmp_path / "run"), "r0").steps()
    assert rows["step"].tolist() == list(range(8))
    assert rows["skipped"].tolist() == [float(i == 2) for i in range(8)]
    (finding,) = watch.findings
    assert finding.code == "NUM005"
    assert 21 in finding.evidence.get("indices", [21]) or "21" in finding.message
    assert any("NUM005" in line for line in said)
    assert "NUM005" in watch.report()
    assert not (tmp_path / "run" / "ring.r0.bin").exists()


@pytest.mark.slow
def test_plain_calls_are_guarded_too(tmp_path: Path) -> None:
    """Opting in halfway: only the optimizer knows us."""
    net, opt = model_and_optimizer()
    with holdfast.watch(net, opt, run_dir=tmp_path / "run", say=lambda line: None) as watch:
        for i, (x, y) in enumerate(loader(poisoned=0)):
            loss = nn.functional.mse_loss(net(x), y)
            (loss * math.nan if i == 4 else loss).backward()
            opt.step()
            opt.zero_grad()
    assert watch.skipped == 2
    assert all(torch.isfinite(p).all() for p in net.parameters())


@pytest.mark.slow
def test_run_step_does_it_all(tmp_path: Path) -> None:
    net, opt = model_and_optimizer()
    watch = holdfast.watch(net, opt, run_dir=tmp_path / "run", say=lambda line: None)
    losses = [
        watch.run_step(lambda b: nn.functional.mse_loss(net(b[0]), b[1]), batch)
        for batch in watch(loader())
    ]
    watch.close()
    # The poisoned batch comes once more, to be traced; what is read is the last finite loss.
    assert len(losses) == 9 and all(math.isfinite(v.item()) for v in losses)
    assert losses[1] == losses[2] == losses[3]
    rows = LaneReader(Run.open(tmp_path / "run"), "r0").steps()
    assert [math.isnan(loss) for loss in rows["loss"]] == [i in (2, 3) for i in range(9)]
    assert all(torch.isfinite(p).all() for p in net.parameters())


def test_a_cell_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the second watch takes over: one guard, two runs, no leftovers."""
    monkeypatch.chdir(tmp_path)
    net, opt = model_and_optimizer()
    watches = []
    for _ in range(2):
        watch = holdfast.watch(net, opt, say=lambda line: None)
        for x, y in watch(loader(poisoned=63)):
            watch.backward(nn.functional.mse_loss(net(x), y))
            watch.step()
        watches.append(watch)
    watches[-1].close()
    watches[-1].close()
    assert [w.skipped for w in watches] == [1, 1]
    assert len(Run.list("runs")) == 2
    assert not opt._optimizer_step_pre_hooks


def test_a_scaler(tmp_path: Path) -> None:
    net, opt = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with holdfast.watch(net, opt, scaler=scaler, run_dir=tmp_path / "r", say=lambda s: None) as w:
        for i, (x, y) in enumerate(w(loader(poisoned=0))):
            loss = nn.functional.mse_loss(net(x), y)
            w.backward(loss * math.inf if i == 3 else loss)
            w.step()
    rows = LaneReader(Run.open(tmp_path / "r"), "r0").steps()
    assert rows["scaler_skipped"][3] == 1
    assert scaler.get_scale() == 2.0
    assert rows["loss"][5] < 50


def test_a_loop_that_never_trains_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net, opt = model_and_optimizer()
    with holdfast.watch(net, opt) as watch:
        assert sum(1 for _ in watch(loader())) == 8
    assert watch.run is None and watch.report() == "" and watch.findings == []
    assert list(tmp_path.iterdir()) == []


def test_not_an_optimizer() -> None:
    with pytest.raises(UsageError, match=r"torch\.optim\.Optimizer, got str"):
        holdfast.watch(nn.Linear(1, 1), ["adam"])  # type: ignore[list-item]


@pytest.mark.slow
def test_last_words_without_a_parent(tmp_path: Path) -> None:
    """kill -9 in library use: nobody drains the ring, readers do."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import torch, holdfast
        net = torch.nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        watch = holdfast.watch(net, opt, run_dir="run")
        for step in range(100000):
            watch.backward(net(torch.randn(8, 4)).square().mean())
            watch.step()
            print(step, flush=True)
        """)
    )
    command = [sys.executable, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    last = -1
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        for line in process.stdout or ():
            last = int(line)
            if last == 300:
                process.send_signal(signal.SIGKILL)
    steps = LaneReader(Run.open(tmp_path / "run"), "r0").steps()
    assert steps["step"][-1] >= last >= 300
    assert steps["step"].tolist() == list(range(len(steps)))


def test_a_folder_that_cannot_be_used_is_said_once_and_costs_nothing_else(tmp_path):
    (tmp_path / "run").write_text("no folder")
    said: list[str] = []
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.watch(model, optimizer, run_dir=tmp_path / "run", say=said.append) as watch:
        for _ in range(3):
            watch.backward(model(torch.ones(1, 2)).sum())
            watch.step()
    assert [line for line in said if "cannot be recorded" in line and "is a file" in line] == said[
        :1
    ]


def test_a_scaler_policy_is_followed_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    net, opt = model_and_optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    settings = config.load(None, ["scaler.policy=true", "scaler.init=256", "scaler.interval=3"])
    kept: dict[str, Any] = {"settings": settings, "say": lambda line: None}
    with holdfast.watch(net, opt, scaler=scaler, run_dir=tmp_path / "run", **kept) as watch:
        for x, y in watch(loader(poisoned=0)):
            watch.backward(nn.functional.mse_loss(net(x), y))
            watch.step()
    assert scaler.get_growth_interval() == 3
    assert scaler.get_scale() < 2.0**20
    assert "scaler" in {e.kind for e in LaneReader(Run.open(tmp_path / "run"), "r0").events()}


def test_a_note_that_cannot_be_written_costs_nothing_but_the_notes(tmp_path: Path) -> None:
    net, opt = model_and_optimizer()
    with holdfast.watch(net, opt, run_dir=tmp_path / "run", say=lambda line: None) as watch:
        watch.note("mine", {"value": 1.5})
        watch.note("mine", {"value": object()})
        for x, y in watch(loader()):
            watch.backward(nn.functional.mse_loss(net(x), y))
            watch.step()
    assert watch.engine.off <= {"notes"}
    assert watch.skipped == 1  # the guard is still there
    events = LaneReader(Run.open(tmp_path / "run"), "r0").events()
    assert 1.5 in [e.data.get("value") for e in events if e.kind == "mine"]


def test_buffers_changed_between_steps_are_what_a_skipped_step_goes_back_to(tmp_path: Path) -> None:
    """A moving average that the loop updates after every step, as fast weights are."""
    net, opt = model_and_optimizer()
    net.register_buffer("average", torch.zeros(4))
    kept: list[torch.Tensor] = []
    with holdfast.watch(net, opt, run_dir=tmp_path / "run", say=print) as watch:
        for step, (x, y) in enumerate(watch(loader())):
            watch.backward(nn.functional.mse_loss(net(x), y))
            watch.step()
            if step != 2:  # the poisoned one
                net.get_buffer("average").add_(1.0)
                watch.settled()
            kept.append(net.get_buffer("average").clone())
    assert watch.skipped == 1
    assert [float(one[0]) for one in kept] == [1.0, 2.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize("reported", [True, False])
def test_a_new_task_that_is_reported_is_not_rolled_back(tmp_path: Path, reported: bool) -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    x = torch.randn(1200, 4)
    target = x.sum(1, keepdim=True)
    target[800:] += 30.0  # the second task
    data = torch.utils.data.TensorDataset(x, target + 0.1 * torch.randn(1200, 1))
    with holdfast.watch(net, opt, run_dir=tmp_path / "run", say=print) as watch:
        batches = torch.utils.data.DataLoader(data, 4)
        for step, (some, wanted) in enumerate(watch(batches)):
            watch.backward(nn.functional.mse_loss(net(some), wanted))
            watch.step()
            if step == 199 and reported:
                watch.new_task()
    rollbacks = [one for one in watch.findings if one.code in ("OPT001", "OPT003")]
    assert bool(rollbacks) is not reported, watch.findings

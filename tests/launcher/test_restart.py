from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.config import RestartSettings, Settings
from holdfast.launcher import restart
from holdfast.launcher.hung import HungProcess
from holdfast.launcher.restart import Restarts, run_to_the_end
from holdfast.launcher.supervisor import Outcome
from holdfast.records.crash import NoProgress
from holdfast.records.recovery import RunStopped
from holdfast.report.actions_taken import restart_actions
from holdfast.report.restarts import restart_line, restarts_of
from holdfast.run import Run
from holdfast.run.batch_mark import batch_mark
from holdfast.run.resumption import RESUMED_FROM, Resumable
from holdfast.types import Event, Finding, Severity

CRASH: dict[str, Any] = {
    "type": "ValueError",
    "message": "Expected more than 1 value",
    "file": "train.py",
}
CRASH |= {"line": 30, "indices": [41]}
STOP = RunStopped(code="NUM003", why="its budget is spent")
SILENT = NoProgress(seconds=700.0, limit=600.0, mark="00c0ffee")
YES = Resumable(accepted=True, step=6, checkpoint="ck.safetensors")


def event(kind: str, step: int = 7, **data: Any) -> Event:
    return Event(time=time.time(), rank=0, step=step, kind=kind, data=data)


class Bench:
    """A run whose processes end as they are told to."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, times: int = 3) -> None:
        self.run = Run.create(path / "run", {"status": "running"})
        self.settings = Settings(restart=RestartSettings(times=times))
        self.said: list[str] = []
        self.lanes: list[Any] = []
        self.answer = YES
        self.findings: list[Finding] = []
        self.restarts = Restarts(self.run, self.settings, lambda run: self.answer)
        monkeypatch.setattr(restart, "say", self.said.append)
        monkeypatch.setattr(restart, "read_run", lambda run: self.lanes)

    def process(self, *events: Event, steps: int = 7) -> None:
        kept = [event("start")]
        rows = np.zeros(steps, dtype=[("step", "<i8"), ("time", "<f8")])
        rows["time"] = time.time()
        lane = f"r0-p{len(self.lanes)}"
        self.lanes.append(
            SimpleNamespace(
                lane=lane, rank=0, steps=rows, events=[*kept, *events], findings=self.findings
            )
        )

    def ended(self, code: int = 1, **outcome: Any) -> Settings | None:
        status = -code if code < 0 else code << 8
        return self.restarts.after(Outcome(pid=os.getpid(), status=status, **outcome))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


def test_a_crash_is_followed_by_another_process_and_recorded(bench: Bench):
    bench.process(event("exception", **CRASH))
    assert bench.ended() is not None
    (reported,) = restarts_of(bench.run.meta)
    assert reported["reason"] == "ValueError: Expected more than 1 value at train.py:30"
    assert reported["step"] == 7 and reported["skips"] == []
    assert bench.said == [f"holdfast: started again in 1 s, restart 1 of 3: {reported['reason']}"]
    assert restart_line(bench.run.meta) == "restarted 1 time"


def test_a_batch_that_ends_it_twice_is_skipped_and_named(bench: Bench):
    following: Settings | None = None
    for _ in range(2):
        bench.process(event("exception", **CRASH))
        following = bench.ended()
    assert following is not None
    assert following.quarantine.batches == (batch_mark([41]),)
    assert "the batch of 1 samples (41) is skipped" in bench.said[-1]
    assert restart_line(bench.run.meta) == "restarted 2 times, 1 batch skipped"
    (reported,) = restart_actions(bench.run.meta)
    assert reported.what == "Started the script again, 2 times" and reported.when == "step 7"
    assert reported.why.endswith("1 batch skipped, after the second time: sample 41")
    # Another batch later: both stay skipped.
    for _ in range(2):
        bench.process(event("exception", 30, **{**CRASH, "indices": [5]}))
        following = bench.ended() or following
    assert following.quarantine.batches == (batch_mark([41]),), "three restarts were all"
    assert "3 of 3 restarts were used" in bench.said[-1]


def test_a_sample_that_has_ended_it_twice_is_known_in_other_batches(bench: Bench):
    bench.findings = [
        Finding(
            code="RUN001", name="crash", severity=Severity.ERROR, step=7, message="m", advice="a",
            evidence={"samples": [41]},
        )
    ]  # fmt: skip
    following: Settings | None = None
    for indices in ([41, 2], [41, 2], [5, 41]):
        bench.process(event("exception", 7, **{**CRASH, "indices": indices}))
        following = bench.ended()
    assert following is not None
    assert set(following.quarantine.batches) == {batch_mark([41, 2]), batch_mark([5, 41])}


def test_the_same_end_without_a_batch_to_blame_is_not_tried_for_ever(bench: Bench):
    crash = {**CRASH, "indices": None}
    bench.process(event("exception", **crash))
    assert bench.ended() is not None
    bench.process(event("exception", **crash))
    assert bench.ended() is None
    assert "it ended twice at step 7" in bench.said[-1]


@pytest.mark.parametrize(
    ("said", "events", "steps", "outcome"),
    [
        ("asked to end (SIGTERM)", [], 7, {"code": -15, "asked": "SIGTERM"}),
        ("asked to end (Ctrl-C)", [event("exception", type="KeyboardInterrupt")], 7, {}),
        ("would happen again", [event("exception", 0, type="ImportError")], 0, {}),
        ("no step was recorded", [event("exception", 0, type="KeyError")], 0, {}),
        ("the policy has stopped it", [event("stop", **STOP.to_dict())], 7, {}),
    ],
)
def test_ends_that_are_final(bench: Bench, said: str, events: Any, steps: int, outcome: Any):
    bench.process(*events, steps=steps)
    assert bench.ended(**outcome) is None
    assert said in bench.said[-1]
    assert not restarts_of(bench.run.meta)


def test_nothing_is_said_of_a_run_that_finished(bench: Bench):
    bench.process()
    assert bench.ended(0) is None and not bench.said


def test_a_script_that_cannot_be_resumed_is_not_started_again(bench: Bench):
    bench.answer = Resumable(accepted=False, reason="`best` is a lambda", file="train.py", line=9)
    bench.process(event("exception", **CRASH))
    assert bench.ended() is None
    assert "`best` is a lambda, at train.py:9" in bench.said[-1]


def test_one_that_resumes_by_itself_must_load_something(bench: Bench):
    bench.answer = Resumable(accepted=False, own=12)
    bench.process(event("exception", **CRASH))
    following = bench.ended()
    assert following is not None and following.restart.own > time.time() - 60
    assert RESUMED_FROM not in bench.run.meta
    # It began anew, and was ended before its first record.
    bench.lanes[-1].events.clear()
    assert bench.ended(2) is None
    assert "the new process recorded nothing (ended with exit code 2)" in bench.said[-1]


def test_the_next_process_is_reported_where_to_go_on(bench: Bench):
    bench.process(event("exception", **CRASH))
    following = bench.ended()
    assert following is not None and following.restart.own == 0.0
    assert bench.run.meta[RESUMED_FROM]["checkpoint"] == "ck.safetensors"


def test_a_kill_and_a_hang_are_told_apart(bench: Bench):
    bench.process()
    assert bench.ended(-signal.SIGKILL) is not None
    assert "killed by SIGKILL" in bench.said[-1]
    hung = Finding(
        code="RUN004", name="hang", severity=Severity.ERROR, step=9, message="m", advice="a",
        file="data.py", line=4, evidence={"samples": [3]},
    )  # fmt: skip
    bench.process(event(SILENT.kind, 9, **SILENT.to_dict()))
    assert bench.ended(-signal.SIGTERM, hung=hung) is not None
    assert "it hung at data.py:4" in bench.said[-1]
    bench.process(event(SILENT.kind, 9, **SILENT.to_dict()))
    following = bench.ended(-signal.SIGTERM, hung=hung)
    assert following is not None and following.quarantine.batches == ("00c0ffee",)


def test_each_pause_is_twice_as_long_up_to_a_minute(bench: Bench):
    bench.restarts = Restarts(
        bench.run, Settings(restart=RestartSettings(times=99)), lambda run: YES
    )
    pauses: list[float] = []
    for number in range(9):
        bench.process(event("exception", **{**CRASH, "indices": [number]}))
        assert bench.ended() is not None
        pauses.append(bench.restarts.pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    bench.process(event("exception", 900, **CRASH))
    assert bench.ended() is not None and bench.restarts.pause == 1, "it had come further"


def test_a_process_that_hangs_gets_time_to_save(monkeypatch: pytest.MonkeyPatch):
    sent: list[tuple[int, int]] = []
    now = [0.0]
    monkeypatch.setattr("holdfast.launcher.stacks.family", lambda pid: [pid, os.getpid()])
    hung = HungProcess(5, 30.0, lambda: now[0], lambda pid, number: sent.append((pid, number)))
    finding: Any = object()
    hung.tick(None)
    assert not sent
    hung.tick(finding)
    now[0] = 29.0
    hung.tick(None)
    assert sent == [(5, signal.SIGTERM)] and hung.ended_for is finding
    now[0] = 31.0
    hung.tick(None)
    assert sent[1:] == [(5, signal.SIGKILL)]
    hung.bury()
    assert sent[2:] == [(os.getpid(), signal.SIGKILL)]


def test_it_is_never_ended_without_restarts():
    hung = HungProcess(5, None, kill=lambda pid, number: pytest.fail("sent a signal"))
    finding: Any = object()
    hung.tick(finding)
    assert hung.ended_for is None


SCRIPT = """
import json, os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
labels = torch.randint(0, 3, (40,))
labels[21] = 7
loader = DataLoader(TensorDataset(torch.randn(40, 4), labels), batch_size=4)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = 0
if os.path.exists("mine.pt"):
    state = torch.load("mine.pt")
    model.load_state_dict(state["model"])
    done = state["done"]
for number, (x, y) in enumerate(loader):
    if number < done:
        continue
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "done": number + 1}, "mine.pt")
print("steps", number + 1)
"""


@pytest.mark.slow
def test_a_label_out_of_range_ends_two_processes_and_not_the_third(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    run = Run.create(tmp_path / "run", {"status": "running"})
    pauses: list[float] = []
    status = run_to_the_end(
        [sys.executable, str(tmp_path / "train.py")],
        run,
        Settings(restart=RestartSettings(times=3)),
        wait=lambda seconds: not pauses.append(seconds),
        ask=lambda run: Resumable(accepted=False, own=14),
    )
    reported = capfd.readouterr()
    assert status == 0 and pauses == [1, 2], reported.err
    first, second = restarts_of(Run.open(run.path).meta)
    assert first["skips"] == [] and second["skips"] == [20, 21, 22, 23]
    assert "IndexError" in second["reason"] or "out of bounds" in second["reason"]
    assert "skipped the batch of samples 20, 21, 22, 23" in reported.err
    assert "steps 9" in reported.out, "of ten batches one was skipped"


KILLED = """
import os, signal, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)
loader = DataLoader(TensorDataset(torch.randn(60, 4), torch.randn(60, 1)), 4, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
steps = 0
for epoch in range(2):
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
        time.sleep(0.05)
        if steps == 20 and not os.path.exists("died"):
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
print("end", steps, loss.item(), sum(p.double().sum().item() for p in model.parameters()))
"""


@pytest.mark.slow
def test_a_killed_run_ends_as_if_nothing_had_been(tmp_path: Path):
    (tmp_path / "train.py").write_text(KILLED)
    words = [sys.executable, "-m", "holdfast", "run", "--run-dir", "run", "--restart", "2"]
    settings = ("checkpoint.steps=3", "rollback.every=1", "rollback.cost=1")
    words += [word for one in settings for word in ("--set", one)]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([*words, "train.py"], cwd=tmp_path, capture_output=True, text=True)

    killed = run()
    assert killed.returncode == 0, killed.stderr
    assert "restart 1 of 2: killed by SIGKILL" in killed.stderr
    assert "restarted 1 time" in killed.stderr
    (tmp_path / "run").rename(tmp_path / "before")
    calm = run()  # it dies only once
    assert killed.stdout.splitlines()[-1] == calm.stdout.splitlines()[-1]

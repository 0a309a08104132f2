"""When something of ours fails the training goes on, untouched, and the failure is told.

As with the optimizers, one script forks once per case. A case breaks one part of holdfast from
within and then trains; what it prints must be what plain python prints.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from typing import Any

import pytest

from .conftest import PATIENCE, TRAIN, Bench, Outcome, Record, await_line

SCRIPT = """
import atexit, json, os, sys
import torch, torch._dynamo
from torch.utils.data import DataLoader, TensorDataset

def boom(*args, **kwargs):
    raise RuntimeError("broken on purpose")

def break_part(name):
    # Only what is loaded already: under plain python there is nothing to break.
    module, _, rest = name.partition(":")
    if module not in sys.modules:
        return
    owner = sys.modules[module]
    *path, last = rest.split(".")
    for part in path:
        owner = getattr(owner, part)
    assert hasattr(owner, last), name
    setattr(owner, last, boom)

def train(name):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(80, 4))
    layers = [torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step, (x,) in enumerate(DataLoader(data, batch_size=8, shuffle=True)):
        if step == 3:
            break_part(name)
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.sum().item() for p in model.state_dict().values()]

torch.set_num_threads(1)
for name in sys.argv[1:]:
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        print(json.dumps([name, os.getpid(), train(name)]), flush=True)
        atexit._run_exitfuncs()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print(json.dumps([name, 0, f"the child ended with {status}"]))
"""

# What is broken, and where the report says the trouble was.
PARTS = {
    "holdfast.recovery.rollback:Recovery.rests": "loader probe",
    "holdfast.probes.batches:LoaderBatches.handed_out": "loader probe",
    "holdfast.probes.batches:LoaderBatches.of": "loader probe",
    "holdfast.diagnosis.nonfinite.investigation:Investigation.calls_backward": "loss probe",
    "holdfast.probes.loss:Losses.saw": "loss probe",
    "holdfast.guard.fast.door:FastSteps.clip": "clip probe",
    "holdfast.guard.norms_before_clip:NormsBeforeClip.seal": "clip probe",
    "holdfast.guard.fast.fast_path:measure_on_host": "clip probe",
    "holdfast.guard.fast.door:FastSteps.open": "guard",
    "holdfast.guard.optimizer_guard:OptimizerGuard.before": "guard",
    "holdfast.guard.optimizer_guard:OptimizerGuard.after": "guard",
    "holdfast.actions.restore_buffers:BufferKeeper.look": "guard",
    "holdfast.actions.restore_buffers:BufferKeeper.keep": "guard",
    "holdfast.probes.learning_rate:read": "guard",
    "holdfast.probes.host:Host.read": "guard",
    "holdfast.probes.timing:Phases.mark": "",
    "holdfast.probes.timing:Phases.take_host": "guard",
    "holdfast.run.recorder:RowTable.put": "guard",
    "holdfast.run.ring:Ring.put": None,
    "holdfast.run.recorder:Recorder.event": None,
    "holdfast.guard.step_writer:StepWriter.close_step": "guard",
    "holdfast.guard.step_writer:StepWriter.close": "closing",
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Outcome, Record]:
    bench = Bench(tmp_path_factory.mktemp("broken"))
    # Everything that is done now and then is done on every step, to meet what is broken.
    every = [f"run.{what}_every=1" for what in ("layers", "memory", "parameters")]
    options = ["--quiet", *(word for setting in every for word in ("--set", setting))]
    plain, guarded = bench.both(bench.write(SCRIPT), *PARTS, options=options)
    return plain, guarded, bench.record


def cases(outcome: Outcome) -> dict[str, tuple[int, Any]]:
    return {name: (pid, result) for name, pid, result in map(json.loads, outcome.lines)}


@pytest.mark.parametrize("part", PARTS)
def test_training_goes_on_without_a_part_of_ours(
    broken: tuple[Outcome, Outcome, Record], part: str
):
    plain, guarded, record = broken
    pid, result = cases(guarded)[part]
    assert result == cases(plain)[part][1], guarded.reported
    where = PARTS[part]
    if where is None:
        return  # the place where it would be written is what was broken
    lanes = [
        n for n in record.lanes if any(e.data["pid"] == pid for e in record.events("start", n))
    ]
    assert len(lanes) == 1
    reported = [e.data for e in record.events("holdfast_error", lanes[0])]
    assert any("broken on purpose" in data["error"] for data in reported)
    assert where in {data["where"] for data in reported} or where == ""


def test_breaking_us_says_nothing_on_the_streams(broken: tuple[Outcome, Outcome, Record]):
    plain, guarded, _ = broken
    assert (guarded.code, guarded.err) == (plain.code, plain.err) == (0, b"")


# The script goes on while the test takes the floor away below us.
WAITING = (
    TRAIN
    + """
import sys
train(5)
print("ready", flush=True)
sys.stdin.readline()
print(train(200, bad=[7]))
print(torch.isfinite(model.weight).all().item())
sys.exit(4)
"""
)


def broken_from_outside(bench: Bench, act: Any, options: tuple[str, ...] = ()) -> Outcome:
    process = bench.start_guarded(bench.write(WAITING), options=options, stdin=-1)
    await_line(process, b"ready")
    until = time.monotonic() + PATIENCE
    while not list(bench.path.glob("steps.*")) and time.monotonic() < until:
        time.sleep(0.02)
    act()
    seen = bench.end(process, b"\n")
    assert (seen.code, seen.lines[-1]) == (4, "True"), seen.reported
    assert len(seen.lines) == 2
    assert "Traceback" not in seen.reported
    return seen


@pytest.mark.slow
def test_the_ring_is_deleted_in_mid_run(bench: Bench):
    broken_from_outside(bench, lambda: (bench.path / "ring.r0.bin").unlink())
    # The mapping outlives the name: nothing is lost.
    assert len(bench.record.steps()) == 205
    assert bench.record.skipped() == [12]


@pytest.mark.slow
def test_the_run_folder_is_deleted_in_mid_run(bench: Bench):
    def remove() -> None:
        until = time.monotonic() + PATIENCE
        while bench.path.exists() and time.monotonic() < until:
            # The parent writes while we delete: what it adds in between needs another turn.
            shutil.rmtree(bench.path, ignore_errors=True)

    seen = broken_from_outside(bench, remove)
    # Whoever deletes the folder is told that there is nothing to look at, in plain words.
    assert "holdfast: " in seen.reported
    assert not seen.reported.count("holdfast: finished")


@pytest.mark.slow
def test_the_facts_of_the_run_are_damaged_in_mid_run(bench: Bench):
    seen = broken_from_outside(bench, lambda: (bench.path / "run.json").write_text("{"))
    assert "holdfast: " in seen.reported


@pytest.mark.slow
def test_nowhere_to_write_from_the_first_step_on(bench: Bench):
    """The folder vanishes before the first step: no lane can be opened, training is guarded."""
    script = bench.write(
        """
        import os, shutil, sys
        shutil.rmtree(os.environ.get("HOLDFAST_RUN", "nowhere"), ignore_errors=True)
        """
        + TRAIN.replace("\n", "\n        ")
        + """
        train(10, bad=[4])
        print(torch.isfinite(model.weight).all().item())
        sys.exit(6)
        """
    )
    seen = bench.guarded(script, options=[])
    assert (seen.code, seen.text) == (6, "True\n"), seen.reported
    assert "Traceback" not in seen.reported and "holdfast: " in seen.reported


def test_a_folder_that_cannot_be_made_lets_the_training_go_on(bench: Bench):
    """As with a full disk: guarded, not recorded, told once with what to do."""
    script = bench.write(TRAIN + "train(10, bad=[4])\nprint(model.weight.isfinite().all().item())")
    words = ["-m", "holdfast", "run", "--run-dir", "/proc/no/run", script]
    seen = bench.end(bench.start(words))
    assert (seen.code, seen.text) == (0, "True\n"), seen.reported
    (line,) = seen.reported.splitlines()
    assert line.startswith("holdfast: this run cannot be recorded or saved, but it is guarded: ")
    assert "cannot write the run folder /proc/no/run" in line and "--run-dir" in line
    # What such a run would be asked for can be neither kept nor taken up.
    seen = bench.end(bench.start([*words[:3], "--restart", "1", *words[3:]]))
    assert (seen.code, seen.text) == (2, "") and "cannot write the run folder" in seen.reported


def test_a_disk_without_room_for_the_ring_is_reported_once_and_truly(bench: Bench):
    full = """
import errno
from holdfast.run import ring
def no_room(*args):
    raise OSError(errno.ENOSPC, "No space left on device")
ring._reserve = no_room
"""
    seen = bench.guarded(bench.write(full + TRAIN + "train(10, bad=[4])\n"), options=[])
    assert seen.code == 0
    (line,) = seen.reported.splitlines()
    assert line.startswith("holdfast: nothing of this run can be recorded: cannot make the ring")
    assert "No space left" in line and not bench.path.exists()


@pytest.mark.slow
def test_a_ring_that_is_too_small_drops_and_says_so(bench: Bench):
    """The parent is stopped, so that nobody drains: rows are dropped and counted, never waited."""
    script = bench.write(
        TRAIN + "print('ready', flush=True)\ntrain(7500)\nprint('done', flush=True)\n"
    )
    options = ("--quiet", "--set", "run.ring_mib=1")
    process = bench.start_guarded(script, options=options)
    await_line(process, b"ready")
    os.kill(process.pid, signal.SIGSTOP)
    await_line(process, b"done")
    os.kill(process.pid, signal.SIGCONT)
    assert bench.end(process).code == 0
    dropped = [e.data for e in bench.record.events("dropped")]
    rows = len(bench.record.steps())
    assert 0 < rows < 7500
    assert dropped and dropped[-1]["records"] >= 7500 - rows
    report = bench.cli("report", str(bench.path))
    assert "the ring was full" in report.text


@pytest.mark.slow
def test_no_standard_error_at_all(bench: Bench):
    """``2>&-``: the number 2 may by now belong to a file of ours, which must stay whole."""
    script = bench.write(TRAIN + "train(30, bad=[3, 9, 20])\nprint('done')\n")
    process = bench.start_guarded(script, options=[], stderr=None, preexec_fn=lambda: os.close(2))
    seen = bench.end(process)
    assert (seen.code, seen.text) == (0, "done\n")
    assert len(bench.record.steps()) == 30
    report = bench.cli("report", str(bench.path), "--format", "json")
    assert report.code == 0
    reported = json.loads(report.text)
    assert reported["skipped"] == 3
    assert all(lane["corrupt"] == 0 for lane in reported["lanes"])
    for path in bench.path.iterdir():
        assert b"holdfast: finished" not in path.read_bytes(), path.name
        assert b"[NUM001]" not in path.read_bytes(), path.name

"""Scans: which combinations, what becomes of each, and what another call does."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import UsageError
from holdfast.records.recovery import RunStopped
from holdfast.records.trainer import TrainingEnded, Validated
from holdfast.training import scanning
from holdfast.training.scan_table import read_row
from holdfast.training.scanning import (
    Combination,
    FolderScan,
    axes_of,
    combinations_of,
    run_scan,
    slurm_script,
)

AXES = {"train.optimizer.lr": ["1e-3", "3e-3"], "model.width": ["8"]}


@pytest.fixture
def scan(tmp_path: Path) -> FolderScan:
    return FolderScan(folder=tmp_path, recipe="mine", combinations=combinations_of(AXES))


def test_names_show_the_values_and_tell_keys_apart():
    assert [one.name for one in combinations_of(AXES)] == ["lr=1e-3,width=8", "lr=3e-3,width=8"]
    alike = combinations_of({"a.lr": ["1"], "b.lr": ["2"], "lr": ["3"]})
    assert [one.name for one in alike] == ["a.lr=1,b.lr=2,lr=3"]
    odd = combinations_of({"text": ["a b", "a/b", "../x"]})
    assert [one.name for one in odd] == ["text=a_b", "text=a_b-2", "text=.._x"]


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=1,,2", "lr=1,"])
def test_a_scan_without_values_is_refused(text):
    with pytest.raises(UsageError, match="KEY=VALUE"):
        axes_of([text])


def test_a_key_that_stands_twice_is_refused():
    with pytest.raises(UsageError, match="twice"):
        axes_of(["lr=1", "lr=2"])


def ended(make_event: Any, step: int, *, interrupted: bool = False) -> Any:
    end = TrainingEnded(why="enough", interrupted=interrupted, seconds=2.5)
    return make_event(end.kind, 0, step, **end.to_dict())


def validated(make_event: Any, step: int, **values: float) -> Any:
    return make_event(Validated.kind, 0, step, **Validated(values=values).to_dict())


def test_a_row_of_the_table(make_run, make_rows, make_event, record_lane):
    events = [
        validated(make_event, 10, loss=3.0, accuracy=0.1),
        validated(make_event, 20, loss=2.0, accuracy=0.3),
        validated(make_event, 30, loss=math.nan, accuracy=0.2),
        ended(make_event, 30, interrupted=True),
    ]
    run = make_run(make_rows(30, skipped={4: 1, 9: 1}), events=events)
    row = read_row(run.path, "loss", "min")
    assert (row.state, row.why) == ("interrupted", "enough")
    assert (row.best, row.best_step, row.steps, row.skipped) == (2.0, 20, 30, 2)
    assert read_row(run.path, "accuracy", "max").best == 0.3
    record_lane(run, make_rows(20, start=30), lane="r0-p7", events=[ended(make_event, 50)])
    row = read_row(run.path, "loss", "min")
    assert (row.state, row.steps, row.seconds) == ("finished", 50, 5.0)


def test_how_a_run_ended(make_run, make_event, tmp_path):
    assert read_row(tmp_path / "none", "loss", "min").state == "new"
    assert read_row(make_run(name="a", exit_code=1).path, "loss", "min").why.endswith("code 1)")
    killed = make_run(name="b", finished=False, end=False)
    assert read_row(killed.path, "loss", "min").state == "interrupted"
    stop = RunStopped(code="OPT001", why="a budget is spent")
    events = [make_event(stop.kind, 0, 3, **stop.to_dict())]
    stopped = read_row(make_run(name="c", exit_code=1, events=events).path, "loss", "min")
    assert (stopped.state, stopped.why) == ("stopped", "stopped by holdfast: a budget is spent")


def test_the_table_is_sorted_and_a_later_call_adds_to_it(scan, make_run, make_event):
    scan.claim()
    for one, loss in zip(scan.combinations, (2.0, 1.0), strict=True):
        events = [validated(make_event, 10, loss=loss), ended(make_event, 20)]
        make_run(name=one.name, events=events)
    wider = combinations_of({**AXES, "train.optimizer.lr": ["1e-2"]})
    FolderScan(folder=scan.folder, recipe="mine", combinations=wider).claim()
    rows = FolderScan.open(scan.folder).write()
    assert [row["train.optimizer.lr"] for row in rows] == ["3e-3", "1e-3", "1e-2"]
    with (scan.folder / "scan.csv").open() as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["finished", "finished", "new"]
    saved = json.loads((scan.folder / "scan.json").read_text())
    assert [row["best"] for row in saved["runs"]] == [1.0, 2.0, "NaN"]


def test_another_scan_in_the_same_folder_is_refused(scan, make_run):
    scan.claim()
    for other in (
        dataclasses.replace(scan, recipe="other"),
        dataclasses.replace(scan, arguments=["--set", "a=1"]),
        dataclasses.replace(scan, combinations=combinations_of({"seed": ["1"]})),
        dataclasses.replace(scan, folder=make_run().path),
    ):
        with pytest.raises(UsageError, match="another --run-dir"):
            other.claim()
    with pytest.raises(UsageError, match="holds no scan"):
        FolderScan.open(scan.folder / "none")


def test_a_run_goes_on_where_it_has_a_checkpoint_and_starts_anew_where_not(scan, make_run):
    first, second = scan.combinations
    assert scan.prepare(first)[2:] == [
        "holdfast", "train", "mine", "--set", "train.optimizer.lr=1e-3", "--set", "model.width=8",
        "--run-dir", str(scan.folder / first.name),
    ]  # fmt: skip
    for one in scan.combinations:
        make_run(name=one.name, finished=False, end=False)
    states = scan.folder / first.name / "checkpoints"
    states.mkdir()
    (states / "step-0000000010.r0.safetensors").touch()
    (states / "step-0000000010.r0.json").write_text("{}")
    assert scan.prepare(first, quiet=True)[-2:] == ["--quiet", "--resume"]
    assert "--resume" not in scan.prepare(second)
    assert (scan.folder / f"{second.name}~1" / "run.json").exists()


CODE = "import sys, pathlib; pathlib.Path(sys.argv[1]).touch(); sys.exit(int(sys.argv[2]))"


def stub(scan: FolderScan, codes: dict[str, int], monkeypatch: Any) -> None:
    """Instead of a training, a process that leaves a file and an exit code."""

    def prepare(self: FolderScan, one: Combination, *, quiet: bool = False) -> list[str]:
        code = codes.get(one.name, 0)
        return [sys.executable, "-c", CODE, str(scan.folder / f"{one.name}.ran"), str(code)]

    monkeypatch.setattr(FolderScan, "prepare", prepare)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_that_fails_does_not_end_the_scan(scan, monkeypatch, jobs):
    stub(scan, {"lr=1e-3,width=8": 7}, monkeypatch)
    said: list[str] = []
    assert run_scan(scan, jobs, said.append) == 1
    assert len(list(scan.folder.glob("*.ran"))) == 2
    assert any("exit code 7" in line for line in said)
    assert len(list(scan.folder.glob("*.log"))) == (2 if jobs == 2 else 0)


def test_what_is_finished_or_running_is_not_run_again(scan, monkeypatch, make_run, make_event):
    stub(scan, {}, monkeypatch)
    make_run(name=scan.combinations[0].name, events=[ended(make_event, 20)])
    assert run_scan(scan, 1, print) == 0
    assert [path.stem for path in scan.folder.glob("*.ran")] == ["lr=3e-3,width=8"]
    monkeypatch.setattr(FolderScan, "state", lambda self, one: "running")
    assert run_scan(scan, 1, print) == 0


def test_an_interrupt_reaches_the_run_once_and_ends_the_scan(scan, monkeypatch):
    code = (
        "import pathlib, signal, sys, time\n"
        "seen = []\n"
        "signal.signal(signal.SIGINT, lambda *_: seen.append(1))\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "while not seen: time.sleep(0.01)\n"
        "time.sleep(0.3)\n"
        "sys.exit(130 if len(seen) == 1 else 99)\n"
    )
    ready = scan.folder / "ready"
    words = [sys.executable, "-c", code, str(ready)]
    monkeypatch.setattr(FolderScan, "prepare", lambda self, one, quiet=False: words)

    def interrupt() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    said: list[str] = []
    assert run_scan(scan, 1, said.append) == 130
    thread.join()
    assert len([line for line in said if line.startswith("scan ")]) == 1
    assert said[-1].endswith("exit code 130")


def test_a_file_for_slurm(scan):
    words = ["mine", "--scan", "train.optimizer.lr=1e-3,3e-3", "--run-dir", "a b"]
    script = slurm_script(scan, words, 2)
    assert "#SBATCH --array=0-1%2\n" in script
    assert f"#SBATCH --output={scan.folder}/slurm-%a.out" in script
    command = script.splitlines()[-1]
    assert command.startswith(f"exec {sys.executable} -m holdfast train mine --scan ")
    assert command.endswith("--run-dir 'a b' --scan-task \"$SLURM_ARRAY_TASK_ID\"")
    assert "#SBATCH --array=0-1\n" in slurm_script(scan, words, None)
    assert scanning.PLAN not in script

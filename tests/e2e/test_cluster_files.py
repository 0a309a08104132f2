"""The files of ``examples/cluster`` do what they say, with programs that stand in for a cluster."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.checkpoint.store import CheckpointStore
from holdfast.run import LaneReader, Run

FILES = Path(__file__).parents[2] / "examples" / "cluster"
BATCH, MANIFEST = FILES / "train.sbatch", FILES / "training-job.yaml"
PATIENCE = 200

# Runs the command once for each node, all of them here, and hands signals on as srun does.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
tasks=()
for ((node = 0; node < SLURM_NNODES; node++)); do
    SLURM_NODEID=$node "$@" & tasks+=($!)
done
trap 'kill -TERM "${tasks[@]}"' TERM
code=0
for task in "${tasks[@]}"; do
    while kill -0 "$task" 2>/dev/null; do wait "$task" || code=$?; done
done
exit $code
"""
SCONTROL = """#!/bin/bash
if [[ $1 == show ]]; then for ((i = 0; i < SLURM_NNODES; i++)); do echo localhost; done
else echo "$@" >> "$ASKED"; fi
"""

RECIPE = """
import dataclasses, time
import torch
from torch import nn
from holdfast import Section
from holdfast.training import Recipe, Task, TrainSettings

@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Section):
    pause: float = 0.0
    train: TrainSettings = TrainSettings(steps=40, epochs=None)

def build(settings, place):
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
    def loss(model, batch):
        time.sleep(settings.pause)
        return nn.functional.mse_loss(model(batch[0]), batch[1])
    return Task(
        model=nn.Linear(6, 1), loss=loss,
        train=torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)),
    )

RECIPE = Recipe(name="mine", summary="a test", settings=Mine, build=build, may_change=("pause",))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a job with two nodes of one rank each."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "mine.py").write_text(RECIPE)
    return {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": sys.executable,
        "ASKED": str(tmp_path / "asked"), "PORT": str(free_port()), "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2",
        "RANKS_PER_NODE": "1", "MAX_RESTARTS": "0",
    }  # fmt: skip


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def submit(cluster: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(BATCH), *words], env=cluster, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_the_batch_file_is_bash_and_says_what_it_wants(cluster: dict[str, str]) -> None:
    subprocess.run(["bash", "-n", str(BATCH)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(BATCH)], check=True)
    job = submit(cluster)
    reported, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 2 and "usage: sbatch" in reported
    head = BATCH.read_text().split("set -euo")[0]
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", head, re.M))
    assert options["signal"].startswith("B:USR1@") and "requeue" in options


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.ranks(2)
def test_a_job_whose_time_is_over_is_queued_again_and_goes_on(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    run = tmp_path / "run"
    words = ["train", str(tmp_path / "mine.py"), "--run-dir", str(run), "--resume", "auto"]
    sets = ["--set", "train.data.workers=0", "--set", "train.data.batch=8"]
    first = submit(cluster, *words, *sets, "--set", "pause=0.2")
    wait_for_steps(run, first)
    first.send_signal(signal.SIGUSR1)  # as SLURM does: to this shell alone
    reported, _ = first.communicate(timeout=PATIENCE)
    assert Path(cluster["ASKED"]).read_text() == "requeue 4711\n", reported
    entry = CheckpointStore(run / "checkpoints").latest()
    assert entry is not None and 0 < entry.step < 40, reported
    # The same words once more, with what a requeued job has in its environment.
    again = submit(cluster | {"SLURM_RESTART_COUNT": "1"}, *words, "--set", "pause=0")
    reported, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0 and "ended at step 40" in reported, reported
    resumed = [
        event.data["step"]
        for lane in Run.open(run).lanes()
        for event in LaneReader(Run.open(run), lane).events()
        if event.kind == "resume"
    ]
    assert resumed == [entry.step] * 2
    assert Path(cluster["ASKED"]).read_text() == "requeue 4711\n", "it was over"


def wait_for_steps(run: Path, job: subprocess.Popen[str]) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and job.poll() is None:
        if (run / "events.r1.jsonl").exists() and "epoch_begins" in (
            run / "events.r1.jsonl"
        ).read_text():
            return
        time.sleep(0.1)
    job.kill()
    raise AssertionError(job.communicate()[0])


SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    (model(torch.randn(8, 4)) ** 2).mean().backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.ranks(2)
def test_an_unmodified_script_on_two_nodes_is_one_run(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "run"
    job = submit(cluster, "run", "--run-dir", str(run), str(tmp_path / "train.py"))
    reported, _ = job.communicate(timeout=PATIENCE)
    assert job.returncode == 0, reported
    rows = [LaneReader(Run.open(run), lane).steps() for lane in ("r0", "r1")]
    assert [len(one) for one in rows] == [5, 5], reported


def container() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    service, job = yaml.safe_load_all(MANIFEST.read_text())
    return service, job, job["spec"]["template"]["spec"]["containers"][0]


def test_the_pods_of_the_manifest_find_each_other() -> None:
    service, job, one = container()
    pod, name = job["spec"]["template"]["spec"], job["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {
        "job-name": name
    }
    given = {entry["name"]: entry.get("value") for entry in one["env"]}
    assert given["HEAD"] == f"{name}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert int(given["NODES"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(given["RANKS_PER_NODE"]) == one["resources"]["limits"]["nvidia.com/gpu"]
    assert set(re.findall(r"\$\((\w+)\)", " ".join(one["args"]))) <= given.keys()
    assert f":{one['ports'][0]['containerPort']}" in " ".join(one["args"])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.ranks(2)
def test_the_command_of_the_manifest_trains(tmp_path: Path) -> None:
    _, _, one = container()
    given = {entry["name"]: entry.get("value", "uid-1") for entry in one["env"]}
    given |= {"HEAD": "localhost", "NODES": "1", "RANKS_PER_NODE": "2", "OMP_NUM_THREADS": "1"}
    given["RUN_DIR"] = str(tmp_path / "run")
    args = [re.sub(r"\$\((\w+)\)", lambda m: given[m[1]], word) for word in one["args"]]
    args = [word.replace(":29500", f":{free_port()}") for word in args]
    assert one["command"] == ["torchrun"]
    small = ["train.steps=8", "model.hidden=16", "length=16", "train.data.workers=0"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *args]
        + [word for setting in small for word in ("--set", setting)],
        env={**os.environ, **given}, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ended at step 8" in done.stdout
    assert {"r0", "r1"} <= set(Run.open(tmp_path / "run").lanes())

"""Trackers beside a real training: to its end, and when it is killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import PATIENCE, TRAIN, Bench, await_line

WATCHED = """
import holdfast
settings = holdfast.Settings(track={"to": ["json"]})
watch = holdfast.watch(model, optimizer, run_dir="run", settings=settings)
step = 0
while True:
    train(1)
    step += 1
    print("step", step, flush=True)
"""


def points(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "track" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def await_end(folder: Path, *names: str) -> None:
    """On a busy machine a tracker may end later than the training."""
    until = time.monotonic() + PATIENCE
    for name in names:
        state = folder / "track" / f"{name}.json"
        while not (state.exists() and json.loads(state.read_text())["ended"]):
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_script_is_tracked_while_it_runs(bench: Bench):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    script = bench.write(TRAIN + "train(45, bad=[7])\nprint('done')\n")
    seen = bench.guarded(script, options=["--quiet", "--track", "json", "--track", "tensorboard"])
    assert (seen.code, seen.text) == (0, "done\n")
    await_end(bench.path, "json", "tensorboard")
    found = points(bench.path)
    assert [point["step"] for point in found] == [10, 20, 30, 40, 45]
    assert found[-1]["train/skipped_steps"] == 1
    tags = json.loads((bench.path / "track" / "about.json").read_text())["tags"]
    assert tags["holdfast.outcome"] == "finished" and tags["holdfast.findings"] == "NUM001"
    events = EventAccumulator(str(bench.path / "tensorboard"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == [10, 20, 30, 40, 45]


def test_a_script_that_does_not_train_leaves_nothing(bench: Bench):
    script = bench.write("print('hello')\n")
    seen = bench.guarded(script, options=["--track", "json"])
    assert seen.code == 0 and not bench.path.exists()


@pytest.mark.slow
def test_a_killed_training_is_tracked_to_its_last_step(bench: Bench):
    """Nobody drains its ring: the tracker reads what is in it, and ends by itself."""
    process = bench.start([bench.write(TRAIN + WATCHED)])
    await_line(process, b"step 57")
    os.kill(process.pid, 9)
    seen = bench.end(process)
    steps = 57 + seen.text.count("step")
    await_end(bench.path, "json")
    assert points(bench.path)[-1]["step"] >= steps - 1
    tags = json.loads((bench.path / "track" / "about.json").read_text())["tags"]
    assert tags["holdfast.outcome"] == "killed"

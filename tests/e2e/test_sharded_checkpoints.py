"""Checkpoints over ranks of a real training with FSDP2: saved by some ranks, resumed by others."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore

SCRIPT = Path(__file__).parent / "scripts" / "sharded_training.py"
PATIENCE = 250


def train(world: int, *words: object) -> dict[int, float]:
    """The losses by step of a training with so many ranks."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
         str(world), str(SCRIPT), *map(str, words)],
        capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {int(step): float(value) for step, value in re.findall(r"loss (\d+) (\S+)", done.stdout)}


def newest(folder: Path) -> Path:
    entry = CheckpointStore(folder / "checkpoints").latest()
    assert entry is not None and entry.shared
    return entry.path


@pytest.mark.ranks(2)
def test_two_ranks_go_on_bit_for_bit(tmp_path):
    whole = train(2, tmp_path / "whole", "", 8)
    at = tmp_path / "whole" / "checkpoints" / "step-0000000004"
    rest = train(2, tmp_path / "rest", at, 8)
    assert list(whole) == list(range(8)) and list(rest) == [4, 5, 6, 7]
    assert rest == {step: whole[step] for step in rest}
    one, other = (load(newest(tmp_path / name))[0] for name in ("whole", "rest"))
    for name, weight in one["models"]["model"].items():
        assert weight.equal(other["models"]["model"][name])


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 2])
def test_four_ranks_then_two_then_one_then_two(tmp_path, replicas):
    """The same loss curve as without an interruption; the batches are those of all ranks."""
    whole = train(4, tmp_path / "0", "", 16, replicas)
    for part, world in ((1, 2), (2, 1), (3, 2)):
        before = tmp_path / str(part - 1) / "checkpoints" / f"step-{4 * part:010d}"
        losses = train(world, tmp_path / str(part), before, 16)
        assert list(losses) == list(range(4 * part, 16))
        for step, value in losses.items():
            assert math.isclose(whole[step], value, rel_tol=1e-5), (part, step)


SAVES = """
import sys, torch, time
from pathlib import Path
from torch import distributed
from holdfast.checkpoint.sharded.agreement import Ranks
from holdfast.checkpoint.sharded.places import Place
from holdfast.checkpoint.sharded.saving import save_share, share_of
from holdfast.checkpoint.store import CheckpointStore
folder, store, rank, first = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ranks = Ranks(rank, 2, distributed.FileStore(store, 2))
shelf = CheckpointStore(folder)
shelf.open_for_writing(rank)
shelf.remove_leftover_folders(rank, ranks.token)
print("begins", flush=True)
for step in range(first, first + 100000):
    tree = {"models": {"m": {"w": torch.full((50000,), float(step))}}, "step": step}
    share = share_of(tree, ranks, {"models.m.w": Place((100000,), (50000 * rank,), (50000,))})
    try:
        save_share(share, ranks.begin(step // 2), folder, {"step": step // 2}, patience=1.0)
    except Exception as error:
        print(error, flush=True)
    shelf.prune(2) if rank == 0 else None
"""


def killed_while_saving(tmp_path: Path, rounds: int) -> None:
    """Two ranks save one step after the other, each step twice; one or both are killed."""
    shelf, draw = CheckpointStore(tmp_path / "checkpoints"), random.Random(7)
    newest_step = -1
    for number in range(rounds):
        words = [str(tmp_path / "checkpoints"), str(tmp_path / f"store{number}")]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", SAVES, *words, str(rank), str(2 * newest_step + 2)],
                stdout=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        for rank in ranks:
            assert rank.stdout is not None and rank.stdout.readline() == "begins\n"
        time.sleep(draw.uniform(0.05, 1.0))
        doomed = draw.choice([ranks, ranks[:1], ranks[1:]])
        for rank in doomed:
            rank.send_signal(signal.SIGKILL)
        if doomed != ranks:
            time.sleep(draw.uniform(0.0, 1.5))  # the other goes on, and does not hang
        for rank in ranks:
            rank.kill()
            rank.communicate()
        entry = shelf.latest()
        if entry is None:
            assert newest_step < 0
            continue
        tree, _ = load(entry.path)
        weights = tree["models"]["m"]["w"]
        assert entry.step >= newest_step and int(tree["step"]) // 2 == entry.step
        assert weights.eq(float(tree["step"])).all()  # both halves are of the same save
        newest_step = entry.step
    assert newest_step >= 0


def test_killed_while_saving(tmp_path):
    killed_while_saving(tmp_path, 2)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_while_saving_many_times(tmp_path):
    killed_while_saving(tmp_path, 30)

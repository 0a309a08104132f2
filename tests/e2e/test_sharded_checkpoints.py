"""Checkpoints over ranks of a real training with FSDP2: saved by some ranks, resumed by others."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore

from .conftest import Bench

SCRIPT = Path(__file__).parent / "scripts" / "sharded_training.py"
PATIENCE = 250


def train(bench: Bench, world: int, *words: object) -> dict[int, float]:
    """The losses by step of a training with so many ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    done = bench.end(bench.start([*launcher, "script.py", *map(str, words)]))
    assert done.code == 0, done
    return {int(step): float(value) for step, value in re.findall(r"loss (\d+) (\S+)", done.text)}


def newest(folder: Path) -> Path:
    entry = CheckpointStore(folder / "checkpoints").latest()
    assert entry is not None and entry.shared
    return entry.path


@pytest.mark.ranks(2)
def test_two_ranks_go_on_bit_for_bit(bench: Bench, tmp_path: Path):
    bench.link(SCRIPT)
    whole = train(bench, 2, tmp_path / "whole", "", 8)
    at = tmp_path / "whole" / "checkpoints" / "step-0000000004"
    rest = train(bench, 2, tmp_path / "rest", at, 8)
    assert list(whole) == list(range(8)) and list(rest) == [4, 5, 6, 7]
    assert rest == {step: whole[step] for step in rest}
    one, other = (load(newest(tmp_path / name))[0] for name in ("whole", "rest"))
    for name, weight in one["models"]["model"].items():
        assert weight.equal(other["models"]["model"][name])


@pytest.mark.slow
@pytest.mark.ranks(4)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 2])
def test_four_ranks_then_two_then_one_then_two(bench: Bench, tmp_path: Path, replicas: int):
    """The same loss curve as without an interruption; the batches are those of all ranks."""
    bench.link(SCRIPT)
    whole = train(bench, 4, tmp_path / "0", "", 16, replicas)
    for part, world in ((1, 2), (2, 1), (3, 2)):
        before = tmp_path / str(part - 1) / "checkpoints" / f"step-{4 * part:010d}"
        losses = train(bench, world, tmp_path / str(part), before, 16)
        assert list(losses) == list(range(4 * part, 16))
        for step, value in losses.items():
            assert math.isclose(whole[step], value, rel_tol=1e-5), (part, step)


# Ranks are forks: what takes long is to import torch.
KILLS = """
import os, random, signal, sys, time, torch
from pathlib import Path
from torch import distributed
from holdfast.checkpoint import store as stores
from holdfast.checkpoint.file import load
from holdfast.checkpoint.sharded.agreement import Ranks
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.sharded.saving import save_share, share_of
folder, rounds = Path(sys.argv[1], "checkpoints"), int(sys.argv[2])
shelf, draw = stores.CheckpointStore(folder), random.Random(7)
torch.set_num_threads(1)

def rank_saves(rank, rendezvous, first):
    stores._STARTED = time.time()
    ranks = Ranks(rank, 2, distributed.FileStore(rendezvous, 2))
    shelf.open_for_writing(rank)
    shelf.remove_leftover_folders(rank, ranks.token)
    for number in range(first, first + 100000):
        tree = {"models": {"m": {"w": torch.full((50000,), float(number))}}, "number": number}
        place = PartPlace((100000,), (50000 * rank,), (50000,))
        share = share_of(tree, ranks, {"models.m.w": place})
        try:  # each step twice: the second replaces the first
            save = ranks.begin(number // 2)
            save_share(share, save, folder, {"step": number // 2}, 0.3)
            until = time.time() + 1  # a training is in step with itself
            while save.temporary(folder).exists() and time.time() < until:
                time.sleep(0.001)
        except Exception as error:
            Path(f"{rendezvous}-{rank}").write_text(str(error))
        if rank == 0:
            shelf.prune(2)

newest, found, given_up = -1, 0, 0
for number in range(rounds):
    rendezvous = f"{sys.argv[1]}/store{number}"
    pids = []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            rank_saves(rank, rendezvous, 2 * newest + 2)
        pids.append(pid)
    time.sleep(draw.uniform(0.05, 0.6))
    doomed = draw.choice([pids, pids[:1], pids[1:]])
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    if doomed != pids:
        time.sleep(draw.uniform(0.0, 1.2))  # the other goes on, and does not hang
    for pid in set(pids) - set(doomed):
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    given_up += Path(f"{rendezvous}-0").exists()
    entry = shelf.latest()
    if entry is None:
        assert newest < 0
        continue
    tree, _ = load(entry.path)
    assert entry.step >= newest and tree["number"] // 2 == entry.step
    # Both halves are of the same save.
    assert tree["models"]["m"]["w"].eq(float(tree["number"])).all()
    newest, found = entry.step, found + 1
left = [path.name for path in folder.iterdir() if path.name.endswith(".tmp")]
print(newest, found, given_up, len(left))
"""


def killed_while_saving(folder: Path, rounds: int) -> list[int]:
    """Two ranks save one step after the other; one or both are killed, and again."""
    done = subprocess.run(
        [sys.executable, "-c", KILLS, str(folder), str(rounds)],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_killed_while_saving(tmp_path):
    newest, found, _, left = killed_while_saving(tmp_path, 3)
    assert newest >= 0 and found >= 1 and left <= 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_while_saving_many_times(tmp_path):
    newest, found, given_up, left = killed_while_saving(tmp_path, 60)
    # What a dead rank has left is removed by the next life; one that lost the other gives up.
    assert newest > 60 and found > 50 and given_up > 3 and left <= 1

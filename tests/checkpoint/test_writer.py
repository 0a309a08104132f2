from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import distributed

from holdfast.checkpoint import writer as writer_module
from holdfast.checkpoint.file import load
from holdfast.checkpoint.sharded.agreement import Ranks
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.sharded.saving import share_of
from holdfast.checkpoint.tree import flatten
from holdfast.checkpoint.writer import BackgroundWriter, SharedSave
from holdfast.config import CheckpointSettings
from holdfast.errors import CheckpointError

PATIENCE = 20.0


@pytest.fixture
def reported():
    return []


@pytest.fixture
def make_writer(store, reported):
    made = []

    def make(**settings):
        tell = lambda step, result: reported.append((step, result))  # noqa: E731
        made.append(BackgroundWriter(store, CheckpointSettings(**settings), tell))
        return made[-1]

    yield make
    for one in made:
        assert one.close(PATIENCE)


class Held:
    """Holds the writer up at one state, until ``go``."""

    def __init__(self):
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self):
        self.started.set()
        assert self.go.wait(PATIENCE)


def hand_over(writer, make_state, step, value=None, kind="asked", release=lambda: None, **options):
    skeleton, tensors = flatten(make_state(float(step) if value is None else value))
    meta = {"step": step, **options.pop("meta", {})}
    return writer.submit(skeleton, tensors, meta, kind, release, **options)


def test_a_state_is_written_and_told(make_writer, make_state, store, reported):
    writer, released = make_writer(), []
    path = hand_over(
        writer, make_state, 7, kind="time", release=lambda: released.append(1),
        meta={"metrics": {"loss": 0.5}, "rank": 3, "world": 4},
    )  # fmt: skip
    assert path == store.path(7, rank=3)
    assert writer.close(PATIENCE) and released == [1]
    state, record = load(path)
    assert state["models"]["model"]["bias"].tolist() == [7] * 4
    assert (record["kind"], record["rank"], record["metrics"]) == ("time", 3, {"loss": 0.5})
    ((step, result),) = reported
    assert (step, result.why, result.good) == (7, "time", True)
    assert result.file == str(path) and result.bytes == path.stat().st_size
    assert 0 < result.seconds < PATIENCE


def test_the_caller_never_waits_and_the_newest_wins(make_writer, make_state, store, reported):
    writer, held, released = make_writer(last=9), Held(), []
    for step in (1, 2, 3, 4):
        ready = held if step == 1 else lambda: None
        assert hand_over(
            writer, make_state, step, kind="step", ready=ready,
            release=lambda step=step: released.append(step),
        )  # fmt: skip
        assert held.started.wait(PATIENCE)
    assert released == [2, 3]
    assert not writer.wait(0.01)
    held.go.set()
    assert writer.wait(PATIENCE)
    assert [entry.step for entry in store.entries()] == [1, 4] and released == [2, 3, 1, 4]
    assert [(step, result.failed) for step, result in reported] == [
        (2, "not written: step 3 came before its turn"),
        (3, "not written: step 4 came before its turn"),
        (1, ""),
        (4, ""),
    ]


def test_one_that_was_asked_for_is_not_pushed_out(make_writer, make_state, store, reported):
    writer, held, released = make_writer(last=9), Held(), []
    hand_over(writer, make_state, 1, ready=held)
    assert held.started.wait(PATIENCE)
    assert hand_over(writer, make_state, 2, kind="asked")
    assert not hand_over(writer, make_state, 3, kind="time", release=lambda: released.append(3))
    assert released == [3]
    held.go.set()
    assert writer.wait(PATIENCE)
    assert [entry.step for entry in store.entries()] == [1, 2]
    assert reported[0][1].failed == "not written: step 2, which was asked for, is waiting"


def test_the_best_by_the_metric_is_not_pushed_out(make_writer, make_state, store, reported):
    """The end of a short run is saved before the best state of a moment ago was written."""
    writer, held = make_writer(last=9, metric="val"), Held()
    hand_over(writer, make_state, 1, ready=held)
    assert held.started.wait(PATIENCE)
    for step, val in [(2, 0.5), (3, 0.3), (4, 0.9), (5, None)]:
        meta = {"metrics": {} if val is None else {"val": val}}
        assert hand_over(writer, make_state, step, meta=meta)
    held.go.set()
    assert writer.wait(PATIENCE)
    assert [entry.step for entry in store.entries()] == [1, 3, 5]
    assert [step for step, result in reported if result.failed] == [2, 4]


def test_closing_writes_what_waits(make_writer, make_state, store):
    writer, held = make_writer(last=9), Held()
    hand_over(writer, make_state, 1, ready=held)
    assert held.started.wait(PATIENCE)
    hand_over(writer, make_state, 2)
    assert not writer.close(0.01)
    held.go.set()
    assert writer.close(PATIENCE)
    assert [entry.step for entry in store.entries()][-1] == 2


def test_after_closing_nothing_is_taken(make_writer, make_state, reported):
    writer, released = make_writer(), []
    assert writer.close(PATIENCE)
    assert hand_over(writer, make_state, 1, release=lambda: released.append(1)) is None
    assert released == [1] and "the writer is closed" in reported[0][1].failed


def test_the_shelf_keeps_within_its_bounds(make_writer, make_state, store, put):
    put(1, rank=1)
    writer = make_writer(last=2, best=1, metric="val", mode="max")
    for step, val in [(1, 0.2), (2, 0.9), (3, 0.1), (4, 0.3), (5, 0.4)]:
        hand_over(writer, make_state, step, meta={"metrics": {"val": val}})
        assert writer.wait(PATIENCE)
    assert [(e.step, e.rank) for e in store.entries()] == [(1, 1), (2, 0), (4, 0), (5, 0)]


@pytest.mark.parametrize("part", ["models", "optimizers", "ema"])
def test_a_poisoned_state_is_refused_and_the_last_good_one_stays(
    make_writer, make_state, store, reported, part
):
    writer, released = make_writer(last=1), []
    hand_over(writer, make_state, 1)
    assert writer.wait(PATIENCE)
    state = {"models": {}, "optimizers": {}, "ema": {}} | make_state()
    state[part] = {"inner": {"w": torch.tensor([1.0, torch.inf])}}
    writer.submit(*flatten(state), {"step": 2}, "step", lambda: released.append(1))
    assert writer.wait(PATIENCE)
    assert released == [1] and [entry.step for entry in store.entries()] == [1]
    failed = reported[-1][1].failed
    assert reported[-1][0] == 2 and f"{part}.inner.w holds NaN or infinity" in failed


def test_a_mask_is_no_poison_when_it_is_exempt(make_writer, store):
    state = {"models": {"m": {"mask": torch.tensor([0.0, -torch.inf])}}}
    writer = make_writer()
    writer.submit(*flatten(state), {"step": 2}, "step", meant={"models.m.mask": None})
    assert writer.close(PATIENCE) and len(store.entries()) == 1


def test_a_run_that_is_not_well_says_so(make_writer, make_state, store, reported):
    writer = make_writer()
    hand_over(writer, make_state, 1, kind="stop", meta={"good": False})
    assert writer.close(PATIENCE)
    assert reported[0][1].good is False and not store.entries()[0].good


def test_what_fails_is_reported_and_the_next_one_is_written(
    make_writer, make_state, store, reported
):
    writer, released = make_writer(), []

    def gone():
        raise ZeroDivisionError("the copy failed")

    def bad_release():
        released.append(1)
        raise RuntimeError

    hand_over(writer, make_state, 1, ready=gone, release=bad_release)
    assert writer.wait(PATIENCE)
    hand_over(writer, make_state, 2, meta={"metrics": {"x": {1, 2}}}, release=bad_release)
    assert writer.wait(PATIENCE)
    hand_over(writer, make_state, 3, release=bad_release)
    assert writer.wait(PATIENCE)
    assert released == [1, 1, 1] and [entry.step for entry in store.entries()] == [3]
    assert reported[0][1].failed == "ZeroDivisionError: the copy failed"
    assert "cannot be written as JSON" in reported[1][1].failed


def test_a_listener_that_fails_harms_nobody(store, make_state):
    def listen(step, result):
        raise RuntimeError

    writer = BackgroundWriter(store, CheckpointSettings(last=9), listen)
    for step in (1, 2):
        hand_over(writer, make_state, step)
        assert writer.wait(PATIENCE)
    assert writer.close(PATIENCE) and len(store.entries()) == 2


def test_a_folder_that_cannot_be_made_is_reported_every_time(tmp_path, make_state, reported):
    (tmp_path / "file").touch()
    store = writer_module.CheckpointStore(tmp_path / "file" / "checkpoints")
    tell = lambda step, result: reported.append(result.failed)  # noqa: E731
    writer = BackgroundWriter(store, CheckpointSettings(), tell)
    for step in (1, 2):
        hand_over(writer, make_state, step)
        assert writer.wait(PATIENCE)
    assert writer.close(PATIENCE)
    assert len(reported) == 2 and all("cannot make the folder" in one for one in reported)


def test_a_folder_that_cannot_be_written(make_writer, make_state, store, reported):
    store.folder.write_text("")  # a file in its place: that stops root as well
    writer = make_writer()
    hand_over(writer, make_state, 1)
    assert writer.wait(PATIENCE)
    store.folder.unlink()
    assert str(store.folder) in reported[0][1].failed
    hand_over(writer, make_state, 2)
    assert writer.wait(PATIENCE) and len(store.entries()) == 1


def test_one_that_cannot_be_removed_does_not_undo_the_save(
    make_writer, make_state, store, reported, monkeypatch
):
    def refuse(*args, **kwargs):
        raise CheckpointError("cannot remove x")

    monkeypatch.setattr(store, "prune", refuse)
    writer = make_writer()
    hand_over(writer, make_state, 1)
    assert writer.close(PATIENCE)
    assert reported[0][1].good and "older ones are still there" in reported[1][1].failed


def test_compression_is_a_setting(make_writer, make_state, store):
    writer = make_writer(compress=True, last=9)
    big = {"models": {"m": {"w": torch.zeros(100_000)}}}
    writer.submit(*flatten(big), {"step": 1}, "asked")
    assert writer.close(PATIENCE)
    assert store.entries()[0].bytes < 20_000


def test_where_no_thread_can_be_started_the_caller_writes(
    make_writer, make_state, store, monkeypatch
):
    def refuse(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    released = []
    assert hand_over(make_writer(), make_state, 1, release=lambda: released.append(1))
    assert released == [1] and len(store.entries()) == 1


def test_a_forked_child_does_not_write(make_writer, make_state, reported, monkeypatch):
    writer = make_writer()
    parent = os.getpid()
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "getpid", lambda: parent + 1)
        assert hand_over(writer, make_state, 1) is None
        assert writer.close(PATIENCE)
    assert "forked" in reported[0][1].failed


def test_two_writers_of_one_process_can_save_the_same_steps(
    make_writer, make_state, store, reported
):
    writers = [make_writer(last=9), make_writer(last=9)]
    for step in (1, 1, 2, 2, 1):
        for number, writer in enumerate(writers):
            hand_over(writer, make_state, step, value=float(number))
        assert all(writer.wait(PATIENCE) for writer in writers)
        assert not any(result.failed for _, result in reported)
        assert [entry.step for entry in store.entries() if not entry.checked().damage] == (
            [1] if len(reported) <= 4 else [1, 2]
        )


KILLED = """
import sys, torch, threading
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tree import flatten
from holdfast.checkpoint.writer import BackgroundWriter
from holdfast.config import CheckpointSettings
def listen(step, result):
    print(step, bool(result.failed), flush=True)
    done.set()
writer = BackgroundWriter(CheckpointStore(sys.argv[1]), CheckpointSettings(), listen)
start = max([e.step for e in CheckpointStore(sys.argv[1]).entries()], default=0)
done = threading.Event()
for step in range(start + 1, 10**6):
    done.clear()
    state = {"models": {str(i): torch.full((20_000,), float(step)) for i in range(5)}}
    writer.submit(*flatten(state), {"step": step, "metrics": {"loss": 1 / step}}, "step")
    done.wait()
"""


@pytest.mark.slow
def test_killed_while_writing_the_last_told_step_is_there(store):
    for life in range(2):
        child = subprocess.Popen(
            [sys.executable, "-c", KILLED, store.folder], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        lines = [child.stdout.readline() for _ in range(3 + 5 * life)]
        child.kill()
        lines += child.stdout.read().splitlines()
        child.wait()
        child.stdout.close()
        found = store.latest()
        assert found is not None and found.step >= int(lines[-1].split()[0])
        values = [set(w.tolist()) for w in load(found.path)[0]["models"].values()]
        assert values == [{float(found.step)}] * 5
    assert len(store.entries()) <= 4


class TwoRanks:
    """Two writers on one folder, each for a rank with half of a tensor."""

    def __init__(self, make_writer):
        self.writers = [make_writer(last=1), make_writer(last=1)]
        store = distributed.HashStore()
        self.ranks = [Ranks(rank, 2, store) for rank in range(2)]

    def save(self, rank, step, value=1.0, kind="asked", **options):
        tree = {"models": {"m": {"w": torch.full((4,), value)}}}
        places = {"models.m.w": PartPlace((8,), (4 * rank,), (4,))}
        share = share_of(tree, self.ranks[rank], places)
        together = SharedSave(self.ranks[rank].begin(step), share.places)
        meta = {"step": step, "rank": rank, "world": 2}
        return self.writers[rank].submit(
            share.skeleton, share.tensors, meta, kind, shared_save=together, **options
        )


def test_ranks_write_one_checkpoint_together_and_one_of_them_prunes(make_writer, store, reported):
    two = TwoRanks(make_writer)
    for step in (7, 8):
        for rank in (1, 0):
            assert two.save(rank, step) == store.folder_path(step)
        assert all(writer.wait(PATIENCE) for writer in two.writers)
    assert [path.name for path in store.folder.iterdir()] == ["step-0000000008"]
    assert load(store.folder_path(8))[0]["models"]["m"]["w"].tolist() == [1.0] * 8
    files = [result.file for _, result in reported if not result.failed]
    parts = [result.part for _, result in reported]
    assert files.count(str(store.folder_path(8))) == 1 and parts.count(1) == 2


def test_a_poisoned_part_ends_the_save_of_all_ranks(make_writer, store, reported):
    two = TwoRanks(make_writer)
    two.save(1, 7, float("nan"))
    two.save(0, 7)
    assert all(writer.wait(PATIENCE) for writer in two.writers)
    failed = {result.failed for _, result in reported}
    own = "not written: models.m.w holds NaN or infinity; the last good stays"
    assert own in failed
    assert any(f"given up because of rank 1: {own}" in text for text in failed)
    assert store.latest() is None and list(store.folder.iterdir()) == []


def test_a_state_that_is_not_written_is_reported_to_the_other_ranks(make_writer, store, reported):
    two, held = TwoRanks(make_writer), Held()
    two.save(1, 6, ready=held)
    assert held.started.wait(PATIENCE)
    two.save(1, 7, kind="asked")
    assert two.save(1, 8, kind="time") is None  # step 7, which was asked for, is waiting
    two.save(0, 8)
    assert two.writers[0].wait(PATIENCE)
    held.go.set()
    assert "because of rank 1: not written: step 7, which was asked for" in str(reported)

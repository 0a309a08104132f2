"""What ranks tell each other, and how long the one that ends a save waits."""

from __future__ import annotations

import threading
import time

import pytest
from torch import distributed

from holdfast.checkpoint.record import encode_record
from holdfast.checkpoint.sharded.agreement import Ranks
from holdfast.errors import CheckpointError


def part(rank):
    return {
        "format": 1, "step": 5, "rank": rank, "file": f"r{rank}.safetensors", "sha256": "",
        "bytes": 1, "tensors": {},
    }  # fmt: skip


def test_ranks_of_one_life_have_one_token_and_lives_differ():
    store = distributed.HashStore()
    tokens = {Ranks(rank, 3, store).token for rank in range(3)}
    assert len(tokens) == 1
    assert Ranks(0, 3, distributed.HashStore()).token not in tokens


def test_two_saves_of_one_step_are_two(tmp_path):
    ranks = Ranks()
    first, second = ranks.begin(5), ranks.begin(5)
    assert first.temporary(tmp_path) != second.temporary(tmp_path)


def test_a_cause_is_heard_at_once(tmp_path):
    store = distributed.HashStore()
    own, other = (Ranks(rank, 2, store).begin(5) for rank in range(2))
    (tmp_path / "r0.json").write_bytes(encode_record(part(0)))
    threading.Timer(0.2, other.fail, ["the disk is full"]).start()
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="because of rank 1: the disk is full"):
        own.parts(tmp_path, patience=30.0)
    assert time.monotonic() - began < 10


def test_a_rank_that_still_writes_is_waited_for(tmp_path):
    """Slower than the patience, but its file grows."""
    save = Ranks(0, 1, distributed.HashStore()).begin(5)

    def slowly():
        for size in range(8):
            (tmp_path / "r0.safetensors.tmp").write_bytes(b"x" * size)
            time.sleep(0.1)
        (tmp_path / "r0.json").write_bytes(encode_record(part(0)))

    writer = threading.Thread(target=slowly)
    writer.start()
    (found,) = save.parts(tmp_path, patience=0.4)
    writer.join()
    assert found["rank"] == 0


def test_silence_ends_the_wait_and_names_who_is_missing(tmp_path):
    save = Ranks(0, 4, distributed.HashStore()).begin(5)
    (tmp_path / "r0.json").write_bytes(encode_record(part(0)))
    with pytest.raises(CheckpointError, match="of rank 1 and 2 more: nothing was heard"):
        save.parts(tmp_path, patience=0.2)


def test_a_store_that_is_gone_does_not_raise():
    class Gone:
        def compare_set(self, *_):
            return b"token"

        def set(self, *_):
            raise RuntimeError("connection reset by peer")

    save = Ranks(1, 2, Gone()).begin(5)
    save.fail("the disk is full")
    save.give_up()


def test_ranks_save_after_the_same_step_whatever_their_clocks_say():
    store = distributed.HashStore()
    first, second = (Ranks(rank, 2, store) for rank in range(2))
    # The clock of the first says so after step 5, that of the second never.
    due = [
        [first.due(step, "time" if step >= 5 else ""), second.due(step, "")] for step in range(100)
    ]
    both = [step for step, answers in enumerate(due) if answers == ["time", "time"]]
    assert both == [32, 64, 96]  # nobody sets the clock back here
    assert all(answers == ["", ""] for step, answers in enumerate(due) if step not in both)


def test_one_rank_needs_no_appointment():
    assert Ranks().due(5, "time") == "time" and Ranks().due(6, "") == ""

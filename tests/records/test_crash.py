"""Ends are typed records: each is written by what measures it, and read back the same."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.boot import stacks as answering
from holdfast.config import Settings
from holdfast.detectors import ALL
from holdfast.detectors.judge import Judge
from holdfast.diagnosis.waiting import work_of
from holdfast.guard.last_words import LastWords
from holdfast.launcher.child_memory import LEVELS, ChildEnd, ChildMemory
from holdfast.launcher.drain import Drain
from holdfast.launcher.heartbeat import Heartbeat, LaneNews
from holdfast.records import Kind, RecordError
from holdfast.records.crash import (
    Died,
    HostMemoryLevel,
    LeftLoop,
    LoaderWork,
    NoProgress,
    ProgressAgain,
    RaisedException,
    SignalReceived,
)
from holdfast.run import LaneReader, Recorder, Run, encode
from holdfast.run.host_memory import MemoryLimit
from holdfast.run.jsonl import decode
from holdfast.types import Event
from tests.crashing import crash

R = TypeVar("R", bound=Kind)


def read_back(record: R) -> R:
    """What another process reads of a record."""
    return type(record).from_dict(decode(encode(record.to_dict())))


# ---------------------------------------------------------------------- exceptions


SCRIPTS = {
    "values": "net = nn.Sequential(nn.Linear(20, 8))\nnet(torch.arange(96.).reshape(4, 24))",
    "backward": "y = torch.ones(3, requires_grad=True).exp()\ny += 1\nloss = y.sum()\n"
    "loss.backward()",
    "division": "seen, val = 0, DataLoader(torch.zeros(7), 8, drop_last=True)\n1 / len(val)",
    "recursion": "def f(x):\n    return f(x + 1)\nf(0)",
    "key": "held = {1: 'a', 7: 'b'}\nheld[9]",
    "name": "best_loss = 1.0\nprint(bestloss)",
    "state": "nn.Linear(2, 3).load_state_dict(nn.Linear(4, 3).state_dict())",
    "shapes": "list(DataLoader([torch.zeros(2), torch.zeros(3)], 2))",
    "behind": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError from e",
    "memory": "raise MemoryError",
    "worker": "raise RuntimeError('DataLoader worker (pid 3) is killed by signal: Bus error. ')",
}
# What must have been measured, so that a part which fails does not pass in silence.
MEASURED = {
    "values": "operands variables inner module origins frames excerpt traceback world",
    "backward": "in_place backward_lines loss",
    "division": "divisor",
    "recursion": "recursion",
    "key": "keys numbers side",
    "name": "near akin",
    "state": "saved_sizes model_sizes",
    "shapes": "shapes field indices",
    "behind": "behind raised_from",
    "memory": "limit limit_bytes",
    "worker": "dead_workers oom_kills shared_memory",
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_an_exception_is_read_as_it_was_written(tmp_path: Path, case: str) -> None:
    found, _ = crash(tmp_path, SCRIPTS[case])  # reads it back
    written = found.data.to_dict()
    assert [n for n in MEASURED[case].split() if written.get(n) is None] == []
    assert None not in written.values(), "what was not measured is not written"


def test_a_loop_that_an_exception_left() -> None:
    error = ValueError("odd")
    raised = RaisedException(type="ValueError", message="odd", file="train.py", line=3)
    words = LastWords.of(error, 5, raised, ())
    assert read_back(words.left) == words.left
    assert words.left == LeftLoop(type="ValueError", message="odd", file="train.py", line=3)
    (event,) = words.of_rank(1)
    assert RaisedException.of(event) == raised
    (event,) = words.completed(error).of_rank(0)
    assert RaisedException.of(event) == raised.replace(traceback="ValueError: odd")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"operandz": []}, "exception: the unknown key 'operandz'"),
        ({"operands": [{"name": "x", "shap": [3]}]},
         "exception: operands: CrashValue: the unknown key 'shap'"),
        ({"operands": [{"shape": [3]}]}, "exception: operands: CrashValue: no key 'name'"),
        ({"line": "3"}, "exception: line: '3' is not a whole number"),
    ],
)  # fmt: skip
def test_a_key_that_is_written_otherwise_is_reported(
    make_rows: Any, change: dict[str, Any], why: str
) -> None:
    data = RaisedException(type="KeyError", message="'a'").to_dict() | change
    judge = Judge()
    judge.feed(make_rows(3), [Event(time=0.0, rank=0, step=3, kind="exception", data=data)])
    assert judge.close() == []
    (error,) = judge.errors
    assert error.kind == "holdfast_error"
    assert error.data == {"where": "reading an event exception", "error": f"RecordError: {why}"}


def test_numbers_of_64_bits_lose_no_crash() -> None:
    raised = RaisedException.from_dict(
        {
            "type": "IndexError",
            "operands": [{"name": "y", "shape": [2], "min": -(2**63), "max": 2**62}],
            "differences": [{"names": ["a", "b"], "values": [2**62, 0.5]}],
            "file_limit": 2**62,
        }
    )
    assert raised.operands is not None and raised.operands[0].min == -(2**63)
    assert read_back(raised) == raised


# ---------------------------------------------------------------------- the process


def test_the_memory_of_a_process_that_was_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = MemoryLimit(name="cgroup", bytes=1000, used=int(1000 * LEVELS[-1]) + 1)
    monkeypatch.setattr("holdfast.run.host_memory.shared_limits", lambda: [limit])
    gauge = ChildMemory()
    reading = gauge.look([os.getpid()])[os.getpid()]
    assert isinstance(reading, HostMemoryLevel) and read_back(reading) == reading
    died = gauge.last_words(os.getpid(), ChildEnd(os.getpid(), signal.SIGKILL, 0), at=1.7e9)
    assert isinstance(died, Died) and read_back(died) == died
    assert (died.signal, died.at, died.limit) == ("SIGKILL", 1.7e9, "cgroup")
    assert "together" not in died.to_dict()


def test_a_signal_that_the_supervisor_saw(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"status": "running"})
    recorder = Recorder(run, 0, os.getpid(), "owner", 1 << 16)
    drain = Drain(run, "owner", Settings(), ALL, lambda line: None)
    drain.saw_signal("SIGTERM")
    recorder.close()
    drain.close()
    records = [event.record for event in LaneReader(run, "r0").events()]
    assert SignalReceived(name="SIGTERM") in records


class Ring:
    """What a heartbeat sees of the ring of this process."""

    pid = os.getpid()
    beats = 0

    @property
    def progress(self) -> tuple[int, int]:
        return 0, self.beats


def test_where_a_process_stands_that_does_not_go_on() -> None:
    answering.answer_stacks()
    now, ring = [0.0], Ring()
    heartbeat = Heartbeat(60.0, clock=lambda: now[0])
    seen: list[LaneNews] = []
    for _ in range(240):
        now[0] += 0.5
        seen += heartbeat.look({"r0": ring}, {"r0": True})
    ring.beats += 1
    seen += heartbeat.look({"r0": ring}, {"r0": True})
    silent, again = (one.record for one in seen)
    assert isinstance(silent, NoProgress) and isinstance(again, ProgressAgain)
    assert read_back(silent) == silent and read_back(again) == again
    assert silent.frames and silent.threads and silent.pid == os.getpid()
    assert silent.file == __file__ and "excerpt" in silent.to_dict()


def test_what_a_loader_says_of_its_work() -> None:
    reported: list[LoaderWork] = []

    class Data(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            reported.append(work_of(sys._getframe()))
            return index

    list(DataLoader(Data(), 3))
    assert [work.sample for work in reported] == [0, 1, 2]
    assert all(LoaderWork.from_dict(decode(encode(w.to_dict()))) == w for w in reported)
    with pytest.raises(RecordError, match="waits_on"):
        LoaderWork.from_dict({"waits_on": 3})

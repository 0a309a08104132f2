from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field

import pytest

from holdfast.boot import stacks as answering
from holdfast.launcher import stacks
from holdfast.launcher.heartbeat import BEFORE, Heartbeat, LaneNews, Starting
from holdfast.launcher.stacks import Frame, Stacks
from holdfast.records.crash import LoaderWork, NoProgress, ProgressAgain

LINE = Frame("train.py", 12, "main")
SILENT, AGAIN = NoProgress, ProgressAgain


@dataclass
class Ring:
    """What a heartbeat sees of a ring."""

    pid: int = field(default_factory=os.getpid)
    beats: int = 0

    @property
    def progress(self) -> tuple[int, int]:
        return 0, self.beats


class Bench:
    """A heartbeat with a clock that is set, ticked twice a second."""

    def __init__(self, after: float = 60.0, lanes: int = 1) -> None:
        self.now = 0.0
        self.rings = {f"r{i}": Ring() for i in range(lanes)}
        self.stepped = True
        self.others: dict[str, Ring] = {}
        self.reported: list[LaneNews] = []
        self.asked = 0
        self.heartbeat = Heartbeat(after, clock=lambda: self.now, ask=self._ask)

    def _ask(self, pid: int) -> Stacks | None:
        self.asked += 1
        return Stacks(pid=pid, frames=(LINE,)) if pid == os.getpid() else None

    def pass_time(self, seconds: float, tick: float = 0.5, beating: str = "") -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += tick
            if beating:
                self.rings[beating].beats += 1
            stepped = dict.fromkeys(self.rings, self.stepped)
            self.reported += self.heartbeat.look(self.rings, stepped, self.others)
            for ring in self.others.values():
                ring.beats += 1

    @property
    def kinds(self) -> list[type]:
        return [type(seen.record) for seen in self.reported]


def test_silence_is_looked_at_three_times_and_told_once():
    bench = Bench()
    bench.pass_time(10, beating="r0")
    bench.pass_time(59)
    assert not bench.asked
    bench.pass_time(40)
    assert bench.kinds == [SILENT]
    record = bench.reported[0].record
    assert isinstance(record, NoProgress)
    assert 60 <= record.seconds < 95 and record.limit == 60
    assert record.file == "train.py" and record.line == 12 and not record.moves
    bench.pass_time(60 * 12)
    assert bench.kinds == [SILENT] * 3, "again after three and ten times as long, then no more"


def test_a_run_that_goes_on_is_reported_and_its_pause_remembered():
    bench = Bench()
    bench.pass_time(5, beating="r0")
    bench.pass_time(100)
    bench.pass_time(1, beating="r0")
    assert bench.kinds == [SILENT, AGAIN]
    assert bench.reported[1].record.seconds == pytest.approx(100, abs=2)
    bench.pass_time(250)
    assert len(bench.reported) == 2, "three times the longest pause is not over"
    bench.pass_time(100)
    assert bench.kinds == [SILENT, AGAIN, SILENT]


def test_batches_of_a_validation_are_beats():
    bench = Bench()
    bench.pass_time(5, beating="r0")
    bench.pass_time(3600, beating="r0")
    assert not bench.reported


def test_one_rank_that_works_keeps_all_alive():
    bench = Bench(lanes=2)
    bench.pass_time(5, beating="r0")
    bench.pass_time(600, beating="r1")
    assert not bench.reported
    bench.pass_time(90)
    assert sorted(seen.lane for seen in bench.reported) == ["r0", "r1"]


def test_a_rank_of_another_supervisor_that_works_keeps_it_alive_too():
    bench = Bench()
    bench.others = {"r1": Ring()}
    bench.pass_time(5, beating="r0")
    bench.pass_time(600)
    assert not bench.asked


def test_the_first_step_has_more_time():
    bench = Bench()
    bench.stepped = False
    bench.pass_time(170)
    assert not bench.asked
    bench.pass_time(80)
    assert bench.kinds == [SILENT]


def test_a_machine_that_slept_or_a_clock_that_jumps_is_no_hang():
    bench = Bench()
    bench.pass_time(5, beating="r0")
    bench.pass_time(50_000, tick=5_000)
    assert not bench.asked, "ten ticks count as twenty seconds"


def test_never_where_it_is_switched_off():
    bench = Bench(after=0.0)
    bench.pass_time(5000)
    assert not bench.reported and not bench.asked


def test_a_process_is_asked_for_its_stacks():
    answering.answer_stacks()
    done = threading.Event()
    waiting = threading.Thread(target=done.wait, name="waits")
    waiting.start()
    try:
        found = stacks.ask(os.getpid())
    finally:
        done.set()
        waiting.join()
    assert found is not None and found.threads >= 2
    assert found.line is not None and found.line.file == __file__
    assert found.line.function == "test_a_process_is_asked_for_its_stacks"
    assert found.reported.pid == os.getpid()


def test_a_process_that_does_not_answer_is_left_alone():
    assert stacks.ask(1) is None
    assert stacks.ask(2**22 + 1) is None


def test_a_worker_has_the_calls_of_its_parent_below_its_own():
    text = (
        "Current thread 0x1 (most recent call first):\n"
        '  File "data.py", line 9 in __getitem__\n'
        '  File "/x/site-packages/torch/utils/data/_utils/worker.py", line 3 in _worker_loop\n'
        '  File "train.py", line 5 in <module>\n\n'
        '#holdfast {"worker": 1, "sample": 4}\n'
    )
    read = stacks.read(7, text)
    assert read.line == Frame("data.py", 9, "__getitem__")
    assert len(read.frames) == 2 and read.reported == LoaderWork(worker=1, sample=4)


def test_a_script_that_hangs_before_its_first_record_is_reported_too():
    bench = Bench()
    bench.stepped = False
    bench.rings = {BEFORE: Starting(os.getpid())}  # type: ignore[dict-item]
    bench.pass_time(185)
    assert bench.asked and not bench.reported
    # Asked where it stands, the script has opened its lane.
    bench.rings = {"r0": Ring()}
    bench.pass_time(60)
    assert [seen.lane for seen in bench.reported] == ["r0"] and bench.kinds == [SILENT]
    assert bench.reported[0].record.seconds > 180


def test_the_time_to_start_is_no_pause_of_the_loop():
    bench = Bench()
    bench.rings = {BEFORE: Starting(os.getpid())}  # type: ignore[dict-item]
    bench.pass_time(50)
    bench.rings = {"r0": Ring()}
    bench.pass_time(1)
    bench.pass_time(1, beating="r0")
    bench.pass_time(100)
    assert bench.kinds == [SILENT], "after 60 s, not after three times 50"


def test_a_frame_shows_the_lines_around_its_own(tmp_path):
    script = tmp_path / "train.py"
    rows = [f"line = {n}" for n in range(1, 7)] + ['token = "hf_abcdefghijklmnopqrst"']
    script.write_text("\n".join(rows))
    shown = Frame(str(script), 6, "main").excerpt()
    assert shown[0] == (2, "line = 2") and (6, "line = 6") in shown
    assert shown[-1] == (7, 'token = "***"'), "no secret goes into the run folder"
    assert Frame("nowhere.py", 3, "main").excerpt() == ()

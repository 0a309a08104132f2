"""Host memory that is read beside the training, and what it says of a process that is gone."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cli._run_table import table
from holdfast.config import Settings
from holdfast.detectors import ALL
from holdfast.detectors.kills import Kill
from holdfast.launcher import child_memory
from holdfast.launcher.child_memory import ChildEnd, ChildMemory
from holdfast.launcher.drain import Drain
from holdfast.records.crash import Died
from holdfast.records.run import Start
from holdfast.report import replay
from holdfast.report.run_list import found_runs, read_row
from holdfast.run import Recorder, Run
from holdfast.run.host_memory import MemoryLimit

GIB = 2**30


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The host as the gauge reads it; every reading is due."""
    state = SimpleNamespace(used=GIB, process=GIB, peak=GIB, kills=0, machine=0)

    def limits() -> list[MemoryLimit]:
        return [MemoryLimit(name="cgroup", bytes=16 * GIB, used=int(state.used))]

    monkeypatch.setattr(child_memory.host_memory, "shared_limits", limits)
    monkeypatch.setattr(
        child_memory.host_memory, "resident", lambda pid: (int(state.process), int(state.peak))
    )
    monkeypatch.setattr(child_memory.host_memory, "oom_kills", lambda: state.kills)
    monkeypatch.setattr(child_memory.host_memory, "machine_oom_kills", lambda: state.machine)
    monkeypatch.setattr(child_memory, "_SLOW", 0.0)
    monkeypatch.setattr(child_memory, "_QUICK", 0.0)
    return state


def test_a_level_is_reported_once_and_again_after_it_was_left(host: SimpleNamespace) -> None:
    gauge, reported = ChildMemory(), []
    for used in (1, 11.5, 11.6, 15, 14, 15, 2, 3, 15.5):
        host.used = used * GIB
        reported.append(bool(gauge.look([7])))
    assert reported == [False, True, False, True, False, False, True, False, True]


def test_far_from_a_limit_it_is_read_rarely(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_memory, "_SLOW", 3600.0)
    gauge = ChildMemory()
    gauge.look([7])
    host.used = 15 * GIB
    assert gauge.look([7]) == {} and gauge.look([]) == {}


def test_what_a_process_took_after_the_last_reading_counts(host: SimpleNamespace) -> None:
    gauge = ChildMemory()
    gauge.look([7])
    seen = gauge.last_words(7, ChildEnd(7, signal.SIGKILL, 15 * GIB))
    assert (seen.signal, seen.process, seen.used) == ("SIGKILL", 15 * GIB, 15 * GIB)
    before = gauge.last_words(7, ChildEnd(7, signal.SIGKILL, GIB))
    assert before.used == GIB and before.first == GIB, "a peak of long ago is none"


def test_a_process_that_was_gone_before_the_first_reading(host: SimpleNamespace) -> None:
    gauge = ChildMemory()
    host.process = host.peak = 0
    gauge.look([7])
    seen = gauge.last_words(7, ChildEnd(7, signal.SIGKILL, 14 * GIB))
    assert (seen.process, seen.used) == (14 * GIB, 15 * GIB)


def dead() -> int:
    child = subprocess.Popen(["true"])
    child.wait()
    return child.pid


def recorded(folder: Path, pid: int, **ended: Any) -> tuple[Run, list[str]]:
    """A run whose process was gone without a word, drained as its supervisor does."""
    run = Run.create(folder, {"status": "running", "created": "2026-11-17T12:00:00+00:00"})
    recorder = Recorder(run, 0, pid, "owner", 1 << 16)
    recorder.event(0, Start(pid=pid))
    steps = recorder.table("steps", ["loss", "lr"])
    for step in range(5):
        steps.put(step, 1.0 + step, {"loss": 1.0, "lr": 0.1})
    said: list[str] = []
    drain = Drain(run, "owner", Settings(), ALL, said.append)
    drain.tick()
    for name, value in ended.pop("then", {}).items():
        setattr(ended["host"], name, value)
    status = ended.get("status", int(signal.SIGKILL))
    drain.close(ChildEnd(pid, status, int(ended.get("peak", GIB))))
    code = os.waitstatus_to_exitcode(status)
    run.update_meta(status="finished", exit_code=code)
    return Run.open(folder), said


def test_killed_by_the_kernel_near_the_limit(tmp_path: Path, host: SimpleNamespace) -> None:
    host.used, host.process = 15.4 * GIB, 14 * GIB
    run, said = recorded(tmp_path / "run", dead(), host=host, then={"kills": 1})
    seen = replay(run)
    (finding,) = seen.findings
    assert (finding.code, finding.step, finding.evidence["what"]) == ("MEM008", 5, "kill")
    assert "killed by the OOM killer (SIGKILL); 15.4 GiB of 16.0 GiB were used" in finding.message
    assert "memory.max" in finding.message and "docker run --memory" in finding.advice
    assert finding.message in " ".join(said) or any("[MEM008]" in line for line in said)
    assert seen.ending.line.startswith("killed by the OOM killer, 15.4 GiB of 16.0 GiB")
    (row,) = map(read_row, found_runs(tmp_path))
    assert (row.status, row.verdict) == ("killed", "MEM008")


def test_killed_near_the_limit_and_nobody_counted(tmp_path: Path, host: SimpleNamespace) -> None:
    """SLURM and systemd-oomd kill by themselves."""
    host.used = 14.8 * GIB
    run, _ = recorded(tmp_path / "run", dead(), host=host)
    (finding,) = replay(run).findings
    assert "killed, most likely out of memory (SIGKILL)" in finding.message
    assert replay(run).ending.line.startswith("killed for lack of memory (SIGKILL), most likely")


def test_a_kill_by_a_person_far_from_the_limit_is_not_out_of_memory(
    tmp_path: Path, host: SimpleNamespace
) -> None:
    run, said = recorded(tmp_path / "run", dead(), host=host, peak=GIB)
    seen = replay(run)
    assert seen.findings == () and not said and seen.sick
    assert seen.ending.line.startswith("killed by SIGKILL, not for lack of memory: 1.0 GiB of 16")


def test_another_signal_near_the_limit_is_not_out_of_memory(
    tmp_path: Path, host: SimpleNamespace
) -> None:
    host.used = 15.5 * GIB
    run, _ = recorded(
        tmp_path / "run", dead(), host=host, status=int(signal.SIGSEGV), then={"kills": 1}
    )
    assert replay(run).findings == () and replay(run).ending.line == "killed by SIGSEGV"


def test_a_process_that_was_not_our_child_counts_only_where_the_kernel_counted(
    tmp_path: Path, host: SimpleNamespace
) -> None:
    """A rank under torchrun: its signal is not known here."""
    host.used = 15.5 * GIB
    for kills, codes in ((0, []), (1, ["MEM008"])):
        folder = tmp_path / str(kills)
        run = Run.create(folder, {"status": "running"})
        recorder = Recorder(run, 0, dead(), "owner", 1 << 16)
        recorder.event(0, Start())
        drain = Drain(run, "owner", Settings(), ALL, lambda line: None)
        drain.tick()
        host.kills += kills
        drain.close(ChildEnd(1, 256, GIB))
        assert [finding.code for finding in replay(Run.open(folder)).findings] == codes


def test_killed_together_with_holdfast(tmp_path: Path, host: SimpleNamespace) -> None:
    """Nobody could write the end: the last reading speaks when the run is read."""
    lines = {15.0: "killed for lack of memory, most likely, together with holdfast: 15.0 GiB of",
             13.0: "killed together with holdfast: by SIGKILL, out of memory (13.0 GiB of 16.0 GiB",
             2.0: "killed together with holdfast: by SIGKILL or a reboot"}  # fmt: skip
    for used, line in lines.items():
        folder = tmp_path / str(used)
        pid = dead()
        mark = {"pid": pid, "started": 1, **_mark()}
        run = Run.create(folder, {"status": "running", "process": mark})
        recorder = Recorder(run, 0, pid, "owner", 1 << 16)
        steps = recorder.table("steps", ["loss", "lr"])
        steps.put(0, 1.0, {"loss": 1.0, "lr": 0.1})
        drain = Drain(run, "owner", Settings(), ALL, lambda line: None)
        for now in (15.5 * GIB if used == 2.0 else GIB, used * GIB):
            host.used = now
            drain.tick()
        seen = replay(Run.open(folder))
        assert seen.ending.line.startswith(line), used
        assert [f.code for f in seen.findings] == (["MEM008"] if used == 15.0 else [])
        assert seen.sick
        (row,) = (read_row(one) for one in found_runs(tmp_path) if one.path == folder)
        cell = "killed for lack of memory" if used == 15.0 else "killed"
        assert f"  {cell}  " in "".join(span.text for span in table([row], {})[1])


@pytest.mark.parametrize(
    ("limit", "process", "out"),
    [("machine", 0.5, False), ("machine", 4, True), ("cgroup", 0.5, True)],
)
def test_a_machine_that_others_have_filled(limit: str, process: float, out: bool) -> None:
    died = Died(limit=limit, bytes=64 * GIB, used=62 * GIB, process=process * GIB, signal="SIGKILL")
    assert Kill(data=died).ran_out is out
    assert Kill(data=died.replace(machine_oom_kills=1)).ran_out


def _mark() -> dict[str, Any]:
    from holdfast.run import ProcessMark

    own = ProcessMark.of()
    return {"boot": own.boot, "namespace": own.namespace, "host": own.host}

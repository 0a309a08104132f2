from __future__ import annotations

import os

import pytest

from holdfast.report import summarize
from holdfast.report.run_list import found_runs, read_row, size_of
from holdfast.run import Run


def rows(root):
    return [read_row(one) for one in found_runs(root)]


def test_the_newest_comes_first_and_scans_are_looked_into(make_run, tmp_path):
    for number, name in enumerate(("b", "scan/x", "a")):
        make_run(name=name, meta={"created": f"2026-11-1{number}T00:00:00+00:00"})
    (tmp_path / "foreign" / "deep").mkdir(parents=True)
    assert [row.name for row in rows(tmp_path)] == ["a", "scan/x", "b"]


@pytest.mark.parametrize(
    ("exit_code", "status", "verdict"),
    [
        (0, "finished", "no findings"),
        (3, "crashed", ""),
        (-9, "killed", ""),
        (-2, "interrupted", "no findings"),
    ],
)
def test_status_and_verdict_of_a_run_without_findings(
    make_run, tmp_path, exit_code, status, verdict
):
    make_run(exit_code=exit_code)
    (row,) = rows(tmp_path)
    assert (row.status, row.verdict, row.findings, row.steps) == (status, verdict, 0, 20)


def test_the_verdict_is_the_code_that_the_report_begins_with(make_run, make_rows, tmp_path):
    run = make_run(make_rows(20, loss_bad={5: 1}, grad_bad={9: 1, 11: 1}))
    (row,) = rows(tmp_path)
    summary = summarize(run)
    assert (row.verdict, row.findings) == (summary.findings[0].code, len(summary.findings))


def resumed(make_run, make_rows, make_event, record_lane):
    run = make_run(make_rows(30))
    again = make_rows(25, start=20)
    again["time"] += 1000
    record_lane(run, again, lane="r0-p77", events=[make_event("resume", 0, 20)])


def restarted(make_run, make_rows, make_event, record_lane):
    record_lane(make_run(make_rows(30)), make_rows(25), lane="r0-p77")


def two_ranks(make_run, make_rows, make_event, record_lane):
    record_lane(make_run(make_rows(30)), make_rows(28), lane="r1")


def without_steps(make_run, make_rows, make_event, record_lane):
    make_run(make_rows(0))


@pytest.mark.parametrize("case", [resumed, restarted, two_ranks, without_steps])
def test_steps_are_those_of_the_report(
    make_run, make_rows, make_event, record_lane, tmp_path, case
):
    case(make_run, make_rows, make_event, record_lane)
    (row,) = rows(tmp_path)
    assert row.steps == summarize(Run.open(tmp_path / "run")).steps


def test_endings_are_those_of_the_report(make_run, make_event, tmp_path):
    raised = make_event("exception", 0, 9, type="ValueError", message='"kind":"stop"')
    noise = [make_event("note", 0, i, text='"kind":"exception"') for i in range(3)]
    run = make_run(exit_code=1, events=[*noise, raised])
    with run.stream_path("events", "r0").open("ab") as file:
        file.write(b'{"kind":"stop","torn')
    (row,) = rows(tmp_path)
    assert row.ending == summarize(run).ending.line and "ValueError" in row.ending


def damage_meta(run):
    run.meta_path.write_text("{")


def damage_format(run):
    run.update_meta(format=99)


def damage_steps(run):
    run.table_paths("steps", "r0")[0].write_bytes(b"nonsense")


def damage_ring(run):
    run.ring_path("r0").write_bytes(b"x" * 20_000)


def damage_to_a_folder(run):
    run.stream_path("findings", "r0").unlink(missing_ok=True)
    run.stream_path("findings", "r0").mkdir()


@pytest.mark.parametrize(
    "damage", [damage_meta, damage_format, damage_steps, damage_ring, damage_to_a_folder]
)
def test_a_damaged_run_is_a_row_with_its_problem(make_run, tmp_path, damage):
    damage(make_run())
    make_run(name="well")
    by_name = {row.name: row for row in rows(tmp_path)}
    assert by_name["run"].problem and not by_name["well"].problem
    assert by_name["well"].verdict == "no findings"


def test_lines_that_make_no_sense_are_passed_over(make_run, tmp_path):
    run = make_run()
    with run.stream_path("findings", "r0").open("ab") as file:
        file.write(b'{"code":1}\n[]\nnull\n{"code":"A","severity":"error"}\n')
    with run.stream_path("events", "r0").open("ab") as file:
        file.write(b'{"kind":"exception","data":3}\n{"kind":"stop","data":[],"step":"x"}\n')
    (row,) = rows(tmp_path)
    assert (row.status, row.verdict, row.problem) == ("finished", "no findings", "")


def test_sizes_do_not_follow_links(tmp_path):
    (tmp_path / "run" / "deep").mkdir(parents=True)
    (tmp_path / "run" / "deep" / "file").write_bytes(bytes(1000))
    (tmp_path / "big").write_bytes(bytes(100_000))
    os.symlink(tmp_path, tmp_path / "run" / "round")
    os.symlink(tmp_path / "big", tmp_path / "run" / "link")
    assert 1000 <= size_of(tmp_path / "run") < 2000
    assert size_of(tmp_path / "none") == 0


def test_no_folder_has_no_runs(tmp_path):
    assert found_runs(tmp_path / "none") == []

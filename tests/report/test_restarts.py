"""A run that was started again: one finding for each cause, what was done, and a true headline."""

from __future__ import annotations

from typing import Any

from holdfast.report import plain, report_html, summarize
from holdfast.report.facts import facts_of
from holdfast.report.markdown import markdown
from holdfast.report.record import read_record
from holdfast.report.restarts import ends_once
from holdfast.report.run_list import found_runs, read_row
from holdfast.report.text import report_lines
from holdfast.report.verdict import verdict_of
from holdfast.types import Finding, Severity

REASON = "IndexError: Target 7 is out of bounds. at train.py:12"


def end(step: int, sample: int, **given: Any) -> Finding:
    values: dict[str, Any] = {
        "code": "RUN001", "name": "crash", "severity": Severity.ERROR, "step": step,
        "message": f"step {step}: {REASON} (sample {sample})", "advice": "map the labels",
        "file": "train.py", "line": 12,
    }  # fmt: skip
    evidence = {"count": 1, "steps": [step], "samples": [sample], "headline": f"label {sample}"}
    error = {"error": "IndexError: Target 7 is out of bounds."}
    return Finding(**(values | given), evidence=evidence | error)


def restart(step: int, *skips: int, reason: str = REASON) -> dict[str, Any]:
    time = "2026-11-17T19:18:14+00:00"
    return {"time": time, "step": step, "reason": reason, "pause": 1.0, "skips": list(skips)}


META = {"restarts": [restart(7), restart(7, 41, 3), restart(9)]}
ENDS = [("r0", end(7, 41)), ("r0-p1", end(7, 41)), ("r0-p2", end(9, 50))]


def test_what_ended_several_processes_is_one_finding():
    ((lane, found),) = ends_once(ENDS, META)
    assert lane == "r0" and found.step == 7 and found.last_step == 9
    assert found.message.endswith("(sample 41), 3 times up to step 9")
    assert found.evidence["samples"] == [41, 50] and found.evidence["steps"] == [7, 9]
    assert (found.action, found.evidence["restarts"]) == ("restart", 3)


def test_other_causes_and_other_findings_stay_apart():
    other = end(7, 41, line=30)
    slow = end(8, 1, code="TPT001")
    found = ends_once([*ENDS, ("r0-p3", other), ("r0", slow), ("r0-p1", slow)], META)
    assert [(one.code, one.line, one.action) for _, one in found] == [
        ("RUN001", 12, "restart"), ("RUN001", 30, ""), ("TPT001", 12, ""), ("TPT001", 12, ""),
    ]  # fmt: skip


def test_a_run_without_restarts_is_as_it_was():
    assert ends_once(ENDS, {}) == ENDS


def test_every_form_of_report_says_what_was_done(
    make_run, make_rows, make_event, record_lane, tmp_path
):
    raised = {"type": "IndexError", "message": "Target 7 is out of bounds.", "file": "train.py"}
    raised |= {"line": 12, "sample": 41, "traceback": "Traceback"}
    ends = [make_event("exception", 0, 7, **raised)]
    run = make_run(make_rows(7), meta=META, events=ends)
    record_lane(run, make_rows(3, start=7), lane="r0-p1", events=ends)
    summary = summarize(run)
    (group,) = summary.finding_groups
    done = "started the script again 3 times; 1 batch skipped, after the second time: samples 41, 3"
    assert dict(facts_of(group, None, several_ranks=False).rows)["holdfast"] == done
    verdict = verdict_of(summary)
    assert "the script was restarted 3 times, 1 batch skipped, and the run went" in verdict.sentence
    assert "no step" not in verdict.sentence
    text = " ".join(plain(report_lines(summary)).split())
    assert "1 finding, restarted 3 times, 1 batch skipped" in text
    assert "no steps" not in text.partition("Findings")[0]
    assert text.count("Started the script again") == 1
    assert done in markdown(read_record(run))
    assert "<dt>restarts</dt><dd>3</dd>" in report_html(read_record(run))
    (row,) = (read_row(one) for one in found_runs(tmp_path))
    assert row.findings == 1

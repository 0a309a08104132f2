"""One root cause on top, and what follows from it folded below it, in every form of report."""

from __future__ import annotations

import json

import pytest
from tests.line_events import slower, stalls

from holdfast.report import (
    markdown,
    read_record,
    report_html,
    report_json,
)
from holdfast.report.joined_findings import join_ranks
from holdfast.report.text import end_lines, report_lines
from holdfast.types import Finding, Severity


def finding(code: str, step: int, line: int = 0, **more) -> Finding:
    severity = more.pop("severity", Severity.WARNING)
    rank = more.pop("rank", 0)
    return Finding(
        code=code, name="x", severity=severity, step=step, message=f"step {step}: {code}",
        advice="", file="train.py" if line else "", line=line, rank=rank, evidence=more,
    )  # fmt: skip


def folded(*findings: Finding) -> list[list[str]]:
    found = join_ranks((f"r{f.rank}", f) for f in findings)
    return [[f.code for f in group.findings] for group in found]


def test_what_follows_is_below_its_cause_and_the_rest_is_not():
    slow, stall = finding("TPT004", 40, 7), finding("TPT005", 12, 7, share=0.9)
    other = finding("TPT001", 3, 9, share=0.5)
    assert folded(other, stall, slow) == [["TPT001"], ["TPT004", "TPT005"]]


def test_a_cause_comes_before_a_worse_consequence():
    died = finding("MEM008", 90, 7, severity=Severity.ERROR, consequence="MEM002")
    other = finding("NUM001", 50)
    assert folded(finding("MEM002", 20, 5), other, died) == [["MEM002", "MEM008"], ["NUM001"]]


def test_consequences_of_consequences():
    built, kept = finding("MEM004", 10, 3), finding("MEM002", 20, 5, consequence="MEM004")
    died = finding("MEM008", 90, 7, severity=Severity.ERROR, consequence="MEM002")
    assert folded(died, kept, built) == [["MEM004", "MEM002", "MEM008"]]


@pytest.mark.parametrize(
    "cause", [finding("MEM004", 3, rank=1), finding("MEM004", 3, severity=Severity.INFO)]
)
def test_what_did_not_happen_there_explains_nothing(cause):
    kept = finding("MEM002", 20, 5, consequence="MEM004")
    assert ["MEM002"] in folded(kept, cause)


@pytest.mark.parametrize(("what", "together"), [("graph", True), ("work", False)])
def test_a_graph_that_is_kept_explains_a_slower_backward(what, together):
    groups = folded(finding("TPT004", 60, 8, what=what), finding("MEM003", 20, 5))
    assert (groups == [["MEM003", "TPT004"]]) is together


@pytest.mark.parametrize(
    ("what", "grows", "together"),
    [("hooks", 20e3, True), ("hooks", 2e6, False), ("work", 20e3, False)],
)
def test_hooks_explain_the_little_that_they_keep(what, grows, together):
    kept = finding("MEM002", 90, 5, bytes_per_step=grows)
    groups = folded(kept, finding("TPT004", 60, 5, what=what))
    assert (groups == [["TPT004", "MEM002"]]) is together


def test_every_form_of_report_folds(make_run, make_event):
    (kind, stall), (_, slow) = stalls(), slower()
    events = [make_event(kind, 0, 6, **stall), *[make_event(kind, 0, 9, **slow)] * 2]
    record = read_record(make_run(events=events))
    summary = record.summary
    assert [s.finding.code for s in summary.finding_groups] == ["TPT004"]
    assert [f.code for f in summary.findings] == ["TPT004", "TPT005"]
    page = report_html(record)
    below = page.partition("<details")[2].partition("</details>")[0]
    assert "Follows from it" in below and "TPT005" in below
    assert "TPT005" not in page.partition('id="findings"')[2].partition("<details")[0]
    for lines in (end_lines(summary), report_lines(summary)):
        text = "\n".join("".join(span.text for span in line) for line in lines)
        assert "2 findings" in text and "so also" in text
        assert text.index("TPT004") < text.index("so also") < text.index("TPT005")
    assert "- so also: TPT005" in markdown(record)
    reported = json.loads(report_json(summary))["findings"]
    assert [(f["code"], f["because"]) for f in reported] == [("TPT004", ""), ("TPT005", "TPT004")]

"""The report of a crash: what met on the line, the calls, the traceback; in every form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.detectors.judge import Judge
from holdfast.report import plain
from holdfast.report.crash import crash_of
from holdfast.report.html.findings import finding_html
from holdfast.report.joined_findings import join_ranks
from holdfast.report.text import finding_lines
from holdfast.report.verdict import headline_of
from holdfast.types import Event, Finding, Severity

RAISED: dict[str, Any] = {
    "type": "RuntimeError",
    "message": "mat1 and mat2 shapes cannot be multiplied (4x392 and 100x64)\nsecond line",
    "file": "src/model.py",
    "line": 16,
    "function": "forward",
    "code": "return self.net(x)",
    "start": 16,
    "excerpt": [[15, "    x = x.flatten(1)"], [16, "    return self.net(x)"]],
    "phase": "forward",
    "library": "torch/nn/modules/linear.py:134",
    "frames": [
        {"file": "train.py", "line": 9, "function": "<module>", "code": "model(x)"},
        {"file": "src/model.py", "line": 16, "function": "forward", "code": "return self.net(x)"},
    ],
    "operands": [{"name": "x", "shape": [4, 392], "dtype": "float32", "device": "cpu"}],
    "variables": [{"name": "rate", "value": "0.1", "type": "float"}],
    "inner": {"function": "forward", "values": [{"name": "input", "shape": [4, 392]}]},
    "module": {
        "name": "net.0",
        "module": "Linear",
        "repr": "Linear(in_features=100, out_features=64)",
        "weights": {"weight": [64, 100]},
        "made": {"file": "src/model.py", "line": 9, "code": "nn.Linear(100, 64)"},
    },
    "sample": 481,
    "sample_file": "images/cat.png",
    "process": "DataLoader worker process 2",
    "called_from": "train.py:9",
    "traceback": "Traceback (most recent call last):\n  <module> & co\nRuntimeError: mat1",
}


def reported(data: dict[str, Any]) -> Finding:
    judge = Judge()
    judge.feed(events=[Event(time=0.0, rank=0, step=12, kind="exception", data=data)])
    (finding,) = judge.close()
    assert not judge.errors
    return finding


def test_the_finding_of_a_crash_says_what_where_and_which_sample():
    finding = reported(RAISED)
    assert (finding.code, finding.severity) == ("RUN001", Severity.ERROR)
    assert (finding.file, finding.line, finding.step) == ("src/model.py", 16, 12)
    assert finding.message == (
        "step 12: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x392 and 100x64) at "
        "model.py:16 in loader worker 2 (sample 481, cat.png)"
    )
    assert "nn.Linear(392, …) (model.py:9" in finding.advice
    assert headline_of(finding).startswith("net.0 (Linear) expects 100 features and gets 392")
    assert Finding.from_dict(finding.to_dict()) == finding


def test_nothing_is_reported_of_an_interrupt_or_of_memory():
    judge = Judge()
    for data in ({"type": "KeyboardInterrupt"}, {"type": "MemoryError", "explained": "memory"}):
        judge.feed(events=[Event(time=0.0, rank=0, step=3, kind="exception", data=data)])
    assert judge.close() == []


def test_the_page_shows_values_calls_and_traceback():
    (group,) = join_ranks([("r0", reported(RAISED))])
    page = finding_html(group, 1)
    for part in ("(4, 392)", "net.0", "made at src/model.py:9", "&lt;module&gt; &amp; co", "0.1"):
        assert part in page, part
    assert "images/cat.png" in page and "dataset index" in page
    assert page.count("<details>") == 3 and "while" not in page


def test_text_names_the_values_and_every_call():
    (group,) = join_ranks([("r0", reported(RAISED))])
    text = " ".join(plain(finding_lines(group)).split())
    assert "values x (4, 392)" in text and "called train.py:9" in text
    assert "via train.py:9 in <module>: model(x) via src/model.py:16" in text


def test_a_damaged_record_is_shown_as_far_as_it_goes():
    finding = reported(RAISED)
    broken = {name: 3 for name in finding.evidence}
    broken |= {"error": "ValueError", "frames": [1], "operands": "x", "traceback": "", "cause": {}}
    finding = replace(finding, evidence=broken)
    details = crash_of(finding)
    assert details is not None and details.operands == ()
    (group,) = join_ranks([("r0", finding)])
    assert "ValueError" in finding_html(group, 1)

"""The contract every detector keeps; a new one is tested here before its author writes a test."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.line_events import compiled, reads, slower, stalls, waits
from tests.memory_events import memory_event

from holdfast.detectors import (
    ALL,
    HISTORY,
    SECTIONS,
    Detector,
    Window,
    document,
)
from holdfast.detectors._ranks import RankDetector
from holdfast.detectors.judge import Judge
from holdfast.records.recovery import RolledBack
from holdfast.report.cause import cause_of, title_of
from holdfast.types import Event, Finding, Severity

NAN, INF = np.nan, np.inf

# For each code, columns of an eight-row run that must fire it on the last row.
FIRES = {
    "NUM001": {"loss": {7: NAN}, "loss_bad": {7: 1}},
    "NUM002": {"grad_bad": {7: 1}, "grad_layer": {7: 1}},
    "NUM003": {"param_bad": {7: 1}, "param_layer": {7: 0}},
    "NUM004": {"buffer_bad": {7: 1}, "buffer_layer": {7: 0}},
    "NUM005": {"input_bad": {7: 1}, "loss_bad": {7: 1}, "loss": {7: NAN}},
    "NUM006": {"scale": {6: 1.0, 7: 0.5}, "scaler_skipped": {7: 1}},
    "OPT001": {"loss": {4: 60, 5: 50, 6: 40}, "outlier": {4: 2, 5: 2, 6: 2}},
    "OPT002": {"grad_norm": {7: 300}, "outlier": {7: 1}},
    "MEM007": {"mem_allocated": 2e9, "mem_reserved": 2e9 + 4e8 * np.arange(8)},
}

# For each code that judges events, the kind and the data of one that must fire it.
_UNDONE = RolledBack(
    opt=0, code="OPT003", why="loss", steps=9, to=4, loss=90.0, usual=2.0, tried=2.1
).to_dict()
_UNDONE |= {"lr_factor": 0.5, "left": 2}
_RAISED = {"type": "KeyError", "message": "'cat'", "file": "data.py", "line": 31, "sample": 481}
_SWALLOWED = {k: v for k, v in _RAISED.items() if k != "sample"} | {"batches": 9}
_SILENT = {"seconds": 900.0, "limit": 600.0, "longest": 14.0, "cpu": 0.01, "moves": False}
_SILENT |= {"file": "train.py", "line": 57, "waits_for": 1, "samples": [3, 4], "frames": []}


def _recorded(event: Event) -> tuple[str, dict[str, Any]]:
    return event.kind, dict(event.data)


TELLS = {
    "RUN001": ("exception", _RAISED),
    "RUN002": ("swallowed_exception", _SWALLOWED),
    "RUN003": ("unreadable", _RAISED | {"replaced": True}),
    "RUN004": ("no_progress", _SILENT),
    "OPT003": ("rollback", _UNDONE),
    "MEM001": _recorded(memory_event("growth", in_evaluation=True)),
    "MEM002": _recorded(memory_event("growth", graphs=1, in_evaluation=True)),
    "MEM003": _recorded(memory_event("graph_chain", fed=True)),
    "MEM004": _recorded(memory_event("evaluation_graphs")),
    "MEM005": _recorded(memory_event("growth", tensor_bytes=0.0)),
    "MEM006": _recorded(memory_event("worker_growth")),
    "MEM008": _recorded(memory_event("out_of_memory")),
    "TPT001": waits(),
    "TPT002": reads(),
    "TPT003": compiled(),
    "TPT004": slower(),
    "TPT005": stalls(),
}


def columns_of(detector: type[Detector]):
    return FIRES.get(detector.code, {})


def events_of(detector: type[Detector], rows) -> list[Event]:
    if detector.code not in TELLS or not len(rows):
        return []
    kind, data = TELLS[detector.code]
    step = int(rows["step"].max())
    # What only a clock says must be measured twice.
    times = 2 if kind == "line_times" else 1
    return [Event(time=0.0, rank=0, step=step, kind=kind, data=data)] * times


every = pytest.mark.parametrize("detector", ALL, ids=lambda d: d.code)
# Those that compare ranks judge no window; tests/detectors/test_ranks.py asks them the same.
OF_A_LANE = [detector for detector in ALL if not issubclass(detector, RankDetector)]
each = pytest.mark.parametrize("detector", OF_A_LANE, ids=lambda d: d.code)


def scan(detector: type[Detector], rows) -> list[Finding]:
    names = {0: ["first.weight", "second.weight"]}
    window = Window(
        rows=rows, fresh=len(rows), layers=names, buffers=names, events=events_of(detector, rows)
    )
    return list(detector().scan(window))


def test_codes_and_names_are_unique():
    assert len({d.code for d in ALL}) == len({d.name for d in ALL}) == len(ALL)


@every
def test_attributes(detector, step_columns):
    assert re.fullmatch(r"[A-Z]{3}\d{3}", detector.code)
    assert re.fullmatch(r"[a-z_]+", detector.name)
    file = detector.__module__.rsplit(".", 1)[-1]
    assert file in (detector.name, "leaks"), "one fault, one file; leaks are one measurement"
    assert isinstance(detector.severity, Severity)
    assert detector.needs and set(detector.needs) <= set(step_columns)
    assert re.fullmatch(r"\d+\.\d+", detector.since)
    assert isinstance(detector.preview, bool)
    assert detector.within >= 1
    detector.Options()


@every
def test_document_has_every_section_in_order_with_content(detector):
    text = document(detector)
    assert 20 < len(text.summary) < 95 and text.summary.endswith(".")
    assert tuple(text.sections) == SECTIONS
    for title, body in text.sections.items():
        assert len(body) > 40, f"{title} says nothing"
    assert f"holdfast run -m holdfast.faults.{detector.name}" in text.sections["Reproduce"]
    assert f"python -m holdfast.faults.{detector.name}" in text.sections["Reproduce"]


@each
def test_evidence_section_names_what_a_finding_carries(detector, make_rows):
    (finding,) = scan(detector, make_rows(8, **columns_of(detector)))
    described = document(detector).sections["Evidence"]
    common = {"count", "skipped", "steps", "opt", "layer", "lr", "loss"}
    told = set(re.findall(r"``(\w+)``", described))
    assert set(finding.evidence) - common <= told | {"tensors"}, "undocumented evidence"


@each
@pytest.mark.parametrize("skipped", [0, 1])
def test_message_carries_step_number_fate_and_next_move(detector, make_rows, skipped):
    rows = make_rows(8, start=400, **columns_of(detector))
    rows["skipped"][7] = skipped
    (finding,) = scan(detector, rows)
    assert finding.code == detector.code and finding.name == detector.name
    assert finding.step == finding.last_step == 407
    assert "step 407" in finding.message
    assert re.search(r"\d", finding.message.replace("407", "")), "no number besides the step"
    assert len(finding.message) < 200 and "\n" not in finding.message + finding.advice
    assert len(finding.advice) > 30 and finding.advice[-1] != "."
    if skipped:
        assert finding.message.startswith("step 407 skipped: ")
        undone = TELLS.get(detector.code, ("",))[0] == "rollback"
        assert finding.action == ("rollback" if undone else "skip_update")
    elif "loss_bad" in columns_of(detector) or "grad_bad" in columns_of(detector):
        assert finding.message.startswith("step 407 NOT skipped: ")
    assert finding.evidence["count"] == 1
    assert finding.evidence["steps"] == [407]
    assert Finding.from_dict(finding.to_dict()) == finding


@each
def test_every_detector_has_rows_that_fire_it_alone(detector, make_rows):
    judge = Judge()
    rows = make_rows(8, **columns_of(detector))
    judge.feed(rows, events_of(detector, rows))
    assert [f.code for f in judge.findings] == [detector.code]


@every
def test_survives_nothing_at_all(detector, make_rows):
    assert scan(detector, make_rows(0)) == []


@every
def test_survives_any_single_value_everywhere(detector, make_rows, step_columns):
    for value in (NAN, INF, -INF, 0.0, 1.0, -1.0, 3.4e38):
        for count in (1, 5):
            rows = make_rows(count, **dict.fromkeys(step_columns, value))
            rows["opt"] = 0
            for finding in scan(detector, rows):
                assert finding.message, (value, count)


@each
def test_survives_gaps_and_unordered_steps(detector, make_rows):
    for steps in ([0, 1, 900, 901, 5000, 70000, 70001, 70002], [5, 5, 5, 5, 4, 4, 5, 6]):
        rows = make_rows(8, **columns_of(detector))
        rows["step"] = steps
        assert len(scan(detector, rows)) == 1


@every
def test_survives_missing_columns(detector, make_rows):
    rows = make_rows(8, **columns_of(detector))
    for column in rows.dtype.names:
        if column not in ("step", "time"):
            scan(detector, rows[[n for n in rows.dtype.names if n != column]])
    scan(detector, rows[["step", "time"]])


@every
def test_survives_random_rows(detector, make_rows, step_columns):
    noise = np.random.default_rng(detector.code[-1].encode()[0])
    values = np.array([NAN, INF, -INF, 0, 1, 2, -1, 1e30], dtype=np.float32)
    for _ in range(20):
        count = int(noise.integers(1, 40))
        rows = make_rows(count, **{c: noise.choice(values, count) for c in step_columns})
        rows["opt"] = noise.integers(0, 3, count)
        for finding in scan(detector, rows):
            assert Finding.from_dict(finding.to_dict()) == finding


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2))])
@pytest.mark.parametrize("kind", ["plain", "scaler", "accumulation", "two optimizers", "mask"])
def test_silent_on_healthy_runs(make_rows, kind, seed):
    # Longer than the history, so that its beginning is forgotten on the way.
    rows = make_rows(HISTORY + 300 if kind == "mask" else 3 * HISTORY, seed=seed)
    if kind == "scaler":
        # What GradScaler does: five steps to find the scale, then one overflow per growth.
        rows["scale"] = 2048.0
        rows["scale"][:5] = 65536.0 / 2.0 ** np.arange(5)
        bad = np.r_[np.arange(5), np.arange(2005, len(rows), 2001)]
        rows["scale"][bad[5:]] = 4096.0
        rows["grad_bad"][bad], rows["scaler_skipped"][bad] = 12, 1
    elif kind == "accumulation":
        rows["backwards"] = 8
        rows["grad_norm"][::7] = INF
    elif kind == "two optimizers":
        rows["step"] //= 2
        rows["opt"] = np.arange(len(rows)) % 2
        rows["loss"][1::2] *= -1
    elif kind == "mask":
        rows["buffer_bad"], rows["buffer_layer"] = 1, 0
        rows["input_bad"] = np.where(np.arange(len(rows)) % 3, 0, 1)
    judge = Judge()
    assert judge.feed(rows) == []
    assert judge.errors == []


@each
def test_a_document_names_every_severity_that_its_findings_may_have(detector):
    tree = ast.parse(Path(inspect.getfile(detector)).read_text())
    # Of a file with several detectors, what is not another one's.
    others = {other.__name__ for other in ALL if other is not detector}
    tree.body = [n for n in tree.body if not (isinstance(n, ast.ClassDef) and n.name in others)]
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    named = {
        Severity[node.attr]
        for node in names
        if isinstance(node.value, ast.Name) and node.value.id == "Severity"
    }
    # Where a finding is made without one, a step that was skipped makes an error a warning.
    plain = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "finding"
        and not any(given.arg == "severity" for given in node.keywords)
    ]
    if plain and detector.severity is Severity.ERROR:
        named.add(Severity.WARNING)
    assert named <= {detector.severity, *(other for other, _ in detector.other_severities)}


@each
def test_titles_keep_the_names_of_the_script_and_no_quote_ends_in_two_colons(detector, make_rows):
    for finding in scan(detector, make_rows(8, **columns_of(detector))):
        cause = cause_of(finding)
        title, headline = title_of(finding, cause), (cause and cause.headline) or ""
        path = str(finding.evidence.get("path") or "")
        assert path not in headline.split() or path in title.split()
        assert "::" not in f"{finding.message} {finding.advice} {title}"

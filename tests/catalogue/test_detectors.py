"""The contract every detector keeps; a new one is tested here before its author writes a test."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

from holdfast.detectors import (
    ALL,
    HISTORY,
    SECTIONS,
    Detector,
    Window,
    document,
)
from holdfast.detectors._examples import Example
from holdfast.detectors._ranks import RankDetector
from holdfast.detectors.judge import Judge
from holdfast.records.recovery import RolledBack
from holdfast.report.cause import cause_of, title_of
from holdfast.types import Event, Finding, Severity

NAN, INF = np.nan, np.inf


def rows_of(make_rows, example: Example, **more):
    return make_rows(example.steps, **example.columns, **more)


def events_of(example: Example, rows) -> list[Event]:
    return example.events(int(rows["step"].max())) if len(rows) else []


every = pytest.mark.parametrize("detector", ALL, ids=lambda d: d.code)
# Those that compare ranks judge no window; tests/detectors/test_ranks.py asks them the same.
OF_A_LANE = [detector for detector in ALL if not issubclass(detector, RankDetector)]
each = pytest.mark.parametrize("detector", OF_A_LANE, ids=lambda d: d.code)


def scan(detector: type[Detector], rows, example: Example | None = None) -> list[Finding]:
    names = {0: ["first.weight", "second.weight"]}
    events = events_of(example or detector.fires or Example(0, {}, ()), rows)
    window = Window(rows=rows, fresh=len(rows), layers=names, buffers=names, events=events)
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
    (finding,) = scan(detector, rows_of(make_rows, detector.fires))
    described = document(detector).sections["Evidence"]
    common = {"count", "skipped", "steps", "opt", "layer", "lr", "loss"}
    reported = set(re.findall(r"``(\w+)``", described))
    assert set(finding.evidence) - common <= reported | {"tensors"}, "undocumented evidence"


@each
@pytest.mark.parametrize("skipped", [0, 1])
def test_message_carries_step_number_fate_and_next_move(detector, make_rows, skipped):
    rows = rows_of(make_rows, detector.fires, start=400)
    rows["skipped"][-1] = skipped
    last = 399 + len(rows)
    (finding,) = scan(detector, rows)
    assert finding.code == detector.code and finding.name == detector.name
    assert finding.step == finding.last_step == last
    assert f"step {last}" in finding.message
    assert re.search(r"\d", finding.message.replace(str(last), "")), "no number besides the step"
    assert len(finding.message) < 200 and "\n" not in finding.message + finding.advice
    assert len(finding.advice) > 30 and finding.advice[-1] != "."
    if skipped:
        assert finding.message.startswith(f"step {last} skipped: ")
        undone = any(event.kind == RolledBack.kind for event in detector.fires.events(last))
        assert finding.action == ("rollback" if undone else "skip_update")
    elif {"loss_bad", "grad_bad"} & {*detector.fires.columns}:
        assert finding.message.startswith(f"step {last} NOT skipped: ")
    assert finding.evidence["count"] == 1
    assert finding.evidence["steps"] == [last]
    assert Finding.from_dict(finding.to_dict()) == finding


@each
def test_every_detector_has_rows_that_fire_it_alone(detector, make_rows):
    judge = Judge()
    rows = rows_of(make_rows, detector.fires)
    judge.feed(rows, events_of(detector.fires, rows))
    assert [f.code for f in judge.findings] == [detector.code]


@each
def test_every_detector_is_silent_about_what_only_comes_near(detector, make_rows):
    rows = rows_of(make_rows, detector.silent)
    assert detector.silent not in (detector.fires, Example(detector.silent.steps, {}, ()))
    assert scan(detector, rows, detector.silent) == []
    judge = Judge([detector])
    judge.feed(rows, events_of(detector.silent, rows))
    assert (judge.findings, judge.errors) == ([], [])


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
    many = detector.fires.steps - 5
    gaps = [0, 1, 900, 901, 5000, *range(70000, 70000 + many)]
    for steps in (gaps, [*[5] * (many + 1), 4, 4, 5, 6]):
        rows = rows_of(make_rows, detector.fires)
        rows["step"] = steps
        assert len(scan(detector, rows)) == 1


@every
def test_survives_missing_columns(detector, make_rows):
    rows = rows_of(make_rows, detector.fires or Example(8, {}, ()))
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
    for finding in scan(detector, rows_of(make_rows, detector.fires)):
        cause = cause_of(finding)
        title, headline = title_of(finding, cause), (cause and cause.headline) or ""
        path = str(finding.evidence.get("path") or "")
        assert path not in headline.split() or path in title.split()
        assert "::" not in f"{finding.message} {finding.advice} {title}"

"""Lost time: what is a warning, what is information, and the place of each."""

from __future__ import annotations

import pytest

from holdfast.detectors import by_code
from holdfast.judge import Judge
from holdfast.types import Event, Severity

PLACE = {"file": "src/train.py", "line": 57, "code": "x = slow(y)  # as it was", "lost": 1.0}
WAITS = PLACE | {"share": 0.6, "wait_ms": 9.0, "workers": 0, "what": "dataset", "rare": False}
WAITS |= {"line_share": 0.9, "line_ms": 8.0, "sample_us": 300.0}
SLOWER = PLACE | {"before_ms": 2.0, "now_ms": 5.0, "line_before_ms": 0.1, "line_now_ms": 3.0}
SLOWER |= {"explains": 0.9, "what": "work"}
STALLS = PLACE | {"what": "checkpoint", "every": 5.0, "share": 0.5, "stall_ms": 20.0}
STALLS |= {"step_ms": 4.0}


def findings(make_rows, *events: tuple[str, dict]):
    judge = Judge()
    judge.feed(
        make_rows(20),
        [Event(time=0.0, rank=0, step=9 + i, kind=k, data=d) for i, (k, d) in enumerate(events)],
    )
    assert judge.errors == []
    return judge.findings


@pytest.mark.parametrize(
    ("kind", "data", "severity"),
    [
        ("input_bound", WAITS, Severity.WARNING),
        ("input_bound", WAITS | {"sample_us": 5.0}, Severity.INFO),
        ("input_bound", WAITS | {"share": 0.2}, Severity.INFO),
        ("input_bound", WAITS | {"what": "loader"}, Severity.INFO),
        ("input_bound", WAITS | {"what": "cache"}, Severity.WARNING),
        ("input_bound", WAITS | {"what": "loop", "hits": 500}, Severity.WARNING),
        ("input_bound", WAITS | {"what": "loop", "hits": 1, "makes": True}, Severity.INFO),
        ("slow_down", SLOWER, Severity.WARNING),
        ("slow_down", SLOWER | {"what": "hooks"}, Severity.WARNING),
        ("slow_down", SLOWER | {"what": "retries", "retries": 7}, Severity.WARNING),
        ("slow_down", SLOWER | {"what": "nested"}, Severity.WARNING),
        ("slow_down", SLOWER | {"what": "drawn"}, Severity.WARNING),
        ("slow_down", SLOWER | {"what": "bigger_batches"}, Severity.INFO),
        ("slow_down", SLOWER | {"what": "more_parameters"}, Severity.INFO),
        ("stall", STALLS, Severity.WARNING),
        ("stall", STALLS | {"share": 0.1}, Severity.INFO),
        ("stall", STALLS | {"every": 90.0}, Severity.INFO),
        ("stall", STALLS | {"what": "work", "share": 0.25}, Severity.INFO),
    ],
)
def test_how_bad_it_is(make_rows, kind, data, severity):
    (finding,) = findings(make_rows, (kind, data))
    assert finding.severity is severity
    assert (finding.file, finding.line) == ("src/train.py", 57)
    assert "train.py:57" in finding.message
    assert "as it was" not in finding.advice


@pytest.mark.parametrize(
    ("data", "says", "cure"),
    [
        ({"what": "retries", "retries": 7}, "ran out of memory 7 times", "expandable_segments"),
        ({"what": "clocks", "clock_before": 1980.0, "clock_now": 900.0}, "1980 to 900 MHz", "smi"),
    ],
)
def test_a_device_that_is_slower_by_itself_has_no_line(make_rows, data, says, cure):
    (finding,) = findings(make_rows, ("slow_down", {"before_ms": 2.0, "now_ms": 5.0, **data}))
    assert says in finding.message and cure in finding.advice
    assert (finding.file, finding.line, finding.severity) == ("", 0, Severity.WARNING)


def test_the_slow_sample_is_in_the_advice(make_rows):
    (finding,) = findings(make_rows, ("input_bound", WAITS | {"rare": True, "sample": "407"}))
    assert "407" in finding.advice and "few samples" in finding.message


def test_a_consequence_stands_behind_its_cause(make_rows):
    found = findings(
        make_rows, ("stall", STALLS | {"consequence": "TPT004"}), ("slow_down", SLOWER)
    )
    assert [f.code for f in found] == ["TPT004", "TPT005"]


@pytest.mark.parametrize(("drawn", "first"), [(57, "TPT004"), (58, "TPT005")])
def test_the_line_that_takes_the_time_is_explained_by_the_one_that_lets_it_grow(
    make_rows, drawn, first
):
    adds = SLOWER | {"what": "drawn", "line": 50, "spent": drawn, "share": 0.1}
    found = findings(make_rows, ("stall", STALLS), ("slow_down", adds))
    assert found[0].code == first


def test_the_same_line_is_one_finding_and_another_is_another(make_rows):
    found = findings(
        make_rows, ("stall", STALLS), ("stall", STALLS), ("stall", STALLS | {"line": 80})
    )
    assert sorted(f.line for f in found) == [57, 80]
    assert max(f.evidence["count"] for f in found) == 2


@pytest.mark.parametrize("code", ["TPT001", "TPT002", "TPT003", "TPT004", "TPT005"])
def test_an_event_with_nothing_in_it_is_no_failure(make_rows, code):
    detector = by_code(code)
    kind = detector.kind  # type: ignore[attr-defined]
    assert all(not f.line for f in findings(make_rows, (kind, {})))


def test_the_guard_says_what_to_do(make_rows):
    data = PLACE | {"name": "forward", "times": 4, "same": 4, "seconds": 3.0}
    shape = "tensor 'x' size mismatch at index 0. expected 16, actual 17"
    (sizes,) = findings(make_rows, ("recompile", data | {"guard": shape}))
    (number,) = findings(make_rows, ("recompile", data | {"guard": "k == 3"}))
    assert "dynamic=True" in sizes.advice and "torch.tensor(value)" in number.advice


@pytest.mark.parametrize(("workers", "cure"), [(0, "room for all"), (2, "persistent_workers")])
def test_a_cache_that_is_lost_has_its_own_cure(make_rows, workers, cure):
    lost = WAITS | {"what": "cache", "workers": workers}
    (finding,) = findings(make_rows, ("input_bound", lost))
    assert cure in finding.advice and "pass after pass" in finding.message


def test_a_short_wait_without_a_line_is_not_worth_a_word(make_rows):
    short = WAITS | {"what": "loader", "wait_ms": 1.1}
    assert findings(make_rows, ("input_bound", short)) == []
    assert findings(make_rows, ("input_bound", short | {"workers": 2}))

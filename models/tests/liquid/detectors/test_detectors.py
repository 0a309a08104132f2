"""The detectors of liquid networks: silent where one learns, each on its own fault."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from holdfast.detectors import SECTIONS, document
from holdfast.detectors.judge import Judge
from holdfast.types import Event, Finding, Severity
from holdfast_models.liquid.detectors import DETECTORS

MakeRows = Callable[..., Any]
NAN, INF = float("nan"), float("inf")

# As runs of two blocks with 32 units of each kind recorded them, every 25 steps.
NAMES = ("spike_rate", "silent_units", "saturated_units", "near_threshold", "tau_short")
CFC = [
    (0.201, 0.0, 0.0, 0.088, 0.0), (0.239, 0.016, 0.0, 0.066, 0.0), (0.245, 0.031, 0.0, 0.067, 0.0),
    (0.267, 0.031, 0.0, 0.062, 0.0), (0.273, 0.0, 0.0, 0.053, 0.0), (0.269, 0.0, 0.0, 0.049, 0.0),
]  # fmt: skip
LTC = [
    (0.216, 0.0, 0.0, 0.090, 0.0062), (0.268, 0.016, 0.016, 0.073, 0.0057),
    (0.268, 0.016, 0.0, 0.066, 0.0091),
]  # fmt: skip
LOW_THRESHOLD = [
    (0.472, 0.0, 0.078, 0.043, 0.0), (0.46, 0.0, 0.094, 0.035, 0.0), (0.44, 0.0, 0.031, 0.03, 0.0),
]  # fmt: skip
SILENT = [(0.0, 1.0, 0.0, 0.0, 0.0)] * 4
HIGH_RATE = [
    (0.201, 0.0, 0.0, 0.088, 0.0), (0.445, 0.531, 0.422, 0.0071, 0.547),
    (0.458, 0.516, 0.453, 0.0070, 0.573), (0.458, 0.500, 0.453, 0.0087, 0.572),
]  # fmt: skip
HOMEOSTATIC = [1.74e-6, 7.31e-6, 6.35e-6, 7.86e-6, 6.52e-6]
BCM = [5.7e-7, 3.57e-6, 2.71e-6, 3.37e-6, 4.02e-6]

every = pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.code)


def noted(values: Iterable[Mapping[str, Any]], kind: str = "numbers", every: int = 50):
    return [
        Event(time=0.0, rank=0, step=every * (i + 1), kind=kind, data=dict(data))
        for i, data in enumerate(values)
    ]


def numbers(count: int = 8, **series: Any) -> list[Event]:
    """Records of a healthy run; a number or a list (its last value goes on) in place of some."""
    usual = {
        "loss": [5.5, 2.9, 2.6], "spike_rate": 0.25, "silent_units": 0.02, "saturated_units": 0.0,
        "near_threshold": 0.06, "tau_short": 0.0, "fast_change": 7e-6, "fast_at_bound": 0.0,
        "weights_moved": 1.0, "ewc_penalty": 0.01,
    }  # fmt: skip
    columns = {k: v if isinstance(v, list) else [v] for k, v in (usual | series).items()}
    return noted({k: v[min(i, len(v) - 1)] for k, v in columns.items()} for i in range(count))


def recorded(series: list[tuple[float, ...]]) -> list[Event]:
    columns = zip(*series, strict=True)
    return numbers(len(series), **{k: list(v) for k, v in zip(NAMES, columns, strict=True)})


def validations(*forgetting: Any) -> list[Event]:
    return noted(
        [
            {"loss": 2.5 - 0.1 * number, "accuracy": 0.4, "forgetting": one}
            for number, one in enumerate(forgetting)
        ],
        "validation",
        100,
    )


def judged(rows: Any, events: list[Event], *, reported: Iterable[str] = ()) -> list[Finding]:
    judge = Judge(DETECTORS)
    judge.feed(rows, events)
    assert {one.data["error"].partition(":")[0] for one in judge.errors} == set(reported)
    return judge.findings


# For each code, events that fire it alone.
FIRES = {
    "LIQ001": recorded(SILENT),
    "LIQ002": numbers(tau_short=[0.0, 0.2, 0.55]),
    "LIQ003": numbers(fast_change=0.0),
    "LIQ004": numbers(weights_moved=[1.0, 0.0]),
    "LIQ005": [*numbers(), *validations(0.02, 0.04, 0.31)],
}


@every
def test_every_detector_is_documented_like_the_others(detector: Any) -> None:
    text = document(detector)
    assert 20 < len(text.summary) < 95 and text.summary.endswith(".")
    assert tuple(text.sections) == SECTIONS
    assert all(len(body) > 40 for body in text.sections.values())
    assert detector.__module__.rsplit(".", 1)[-1] == detector.name
    assert re.fullmatch(r"LIQ\d{3}", detector.code)


@every
def test_its_events_fire_it_alone_and_the_finding_is_whole(
    detector: Any, make_rows: MakeRows
) -> None:
    (finding,) = judged(make_rows(420), FIRES[detector.code])
    assert (finding.code, finding.severity) == (detector.code, detector.severity)
    assert len(finding.message) < 200 and len(finding.advice) > 30 and finding.advice[-1] != "."
    was_reported = set(re.findall(r"``(\w+)``", document(detector).sections["Evidence"]))
    common = {"count", "skipped", "steps", "opt", "layer", "lr", "loss"}
    assert set(finding.evidence) - common <= was_reported, "undocumented evidence"
    assert Finding.from_dict(finding.to_dict()) == finding


@every
def test_row_by_row_and_all_at_once_say_the_same(detector: Any, make_rows: MakeRows) -> None:
    rows, events = make_rows(420), FIRES[detector.code]
    live = Judge(DETECTORS)
    for start in range(0, 420, 7):
        live.feed(rows[start : start + 7], [e for e in events if start <= e.step < start + 7])
    assert live.findings == judged(rows, events)


@pytest.mark.parametrize("series", [CFC, LTC, LOW_THRESHOLD], ids=["cfc", "ltc", "threshold"])
@pytest.mark.parametrize("change", [HOMEOSTATIC, BCM], ids=["homeostatic", "bcm"])
def test_runs_that_learn_are_silent(make_rows: MakeRows, series: Any, change: Any) -> None:
    events = [
        Event(time=0.0, rank=0, step=e.step, kind=e.kind, data={**e.data, "fast_change": moved})
        for e, moved in zip(recorded(series), change, strict=False)
    ]
    assert judged(make_rows(420), [*events, *validations(0.0, 0.03, 0.05)]) == []


def test_records_of_another_model_are_left_alone(make_rows: MakeRows) -> None:
    events = noted([{"weights_moved": 0.0, "tau_short": 1.0, "fast_change": 0.0}] * 8)
    assert judged(make_rows(420, lr=0.0), [*events, *validations(0.9, 0.9)]) == []


@pytest.mark.parametrize("value", [NAN, INF, None, "NaN", [1.0], True, -1e30])
def test_no_value_in_a_record_breaks_them(make_rows: MakeRows, value: Any) -> None:
    data = dict.fromkeys(numbers(1)[0].data, value)
    given = [*noted([data] * 8), *validations(*[value] * 4)]
    # What is no number does not reach them: the record says so, once.
    reported = ["RecordError"] if isinstance(value, bool | list | None) else []
    judged(make_rows(420), given, reported=reported)
    judged(make_rows(420), noted([{}] * 8))


def test_a_learning_rate_far_too_high_is_seen_in_spikes_and_time_constants(
    make_rows: MakeRows,
) -> None:
    first, second = judged(make_rows(420), recorded(HIGH_RATE))
    assert (first.code, second.code) == ("LIQ001", "LIQ002")
    assert second.severity is Severity.WARNING and second.evidence["tau_short_start"] == 0
    assert first.message == (
        "step 150: 52% of the spiking units never fire and 45% fire at nearly every step "
        "(mean rate 0.458)"
    )


def test_one_record_of_constant_spikes_is_no_finding(make_rows: MakeRows) -> None:
    assert judged(make_rows(420), numbers(silent_units=[0.0, 0.9, 0.1, 0.9, 0.1])) == []
    (finding,) = judged(make_rows(420), numbers(saturated_units=0.7))
    assert finding.code == "LIQ001" and finding.advice.startswith("raise model.spikes.threshold")


def test_short_time_constants_from_the_start_are_information(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), numbers(tau_short=0.8))
    assert (finding.code, finding.severity) == ("LIQ002", Severity.INFO)
    assert judged(make_rows(420), numbers(tau_short=[0.0, 0.2])) == []


def test_changes_below_rounding_count_as_none(make_rows: MakeRows) -> None:
    (still,) = judged(make_rows(420), numbers(fast_change=9e-8))
    assert "by 9e-08" in still.message and still.step == 150
    assert judged(make_rows(420), numbers(fast_change=[0.0, 2e-7])) == []
    silent = judged(make_rows(420), [*numbers(fast_change=0.0, spike_rate=0.0, silent_units=1.0)])
    assert [f.evidence.get("consequence") for f in silent] == [None, "LIQ001"]


def test_a_rate_of_zero_is_an_error_after_fifty_steps(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420, lr=0.0), numbers(weights_moved=0.0))
    assert (finding.code, finding.step) == ("LIQ004", 50)
    assert "learning rate 0" in finding.message and "warm-up" in finding.advice
    ends_at_zero = [1e-3] * 391 + [0.0] * 29
    assert judged(make_rows(420, lr=ends_at_zero), numbers()) == []


def test_some_skipped_steps_are_no_still_weights(make_rows: MakeRows) -> None:
    assert judged(make_rows(420), numbers(weights_moved=[0.2, 0.0, 0.5, 0.02])) == []
    (finding,) = judged(make_rows(420), numbers(weights_moved=0.0))
    assert finding.step == 100 and "skipped steps" in finding.advice


def test_validations_of_a_copy_that_nobody_updates_are_reported(make_rows: MakeRows) -> None:
    same = [{"loss": 5.545}] * 2
    assert judged(make_rows(420), [*numbers(), *noted([*same, {"loss": 5.4}], "validation")]) == []
    assert judged(make_rows(420), [*numbers(), *noted(same, "validation")]) == []
    (finding,) = judged(make_rows(420), [*numbers(), *noted([*same, *same], "validation")])
    assert (finding.code, finding.step) == ("LIQ004", 150)
    assert "3 validations in a row gave the loss 5.545" in finding.message


def test_a_controller_that_never_moves_is_reported(make_rows: MakeRows) -> None:
    assert judged(make_rows(420), numbers(controller_moved=[0.0, 0.0, 1.0])) == []
    (finding,) = judged(make_rows(420), numbers(controller_moved=0.0))
    assert finding.code == "LIQ003" and "meta controller" in finding.message
    assert finding.evidence["controller_moved"] == 0 and "meta.lr" in finding.advice


def test_forgetting_is_reported_with_the_penalty(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), FIRES["LIQ005"])
    assert finding.evidence["ewc_penalty"] == 0.01 and finding.step == 300
    assert judged(make_rows(420), [*numbers(), *validations(0.1, -0.2, 0.1)]) == []


def test_they_are_imported_without_torch() -> None:
    code = "import sys, holdfast_models.liquid.detectors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

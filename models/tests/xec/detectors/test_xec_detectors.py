"""The detectors of the calorimeter: silent where all is well, each on its own fault."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch

from holdfast.detectors import SECTIONS, document
from holdfast.detectors.judge import Judge
from holdfast.types import Event, Finding, Severity
from holdfast_models.xec.data.normalization import NOT_AVAILABLE, Inputs, normalise
from holdfast_models.xec.detectors import DETECTORS
from holdfast_models.xec.objectives.health_numbers import (
    SensorHealth,
    hidden_numbers,
    target_numbers,
)
from holdfast_models.xec.settings import NormalizationSettings, TaskSettings

MakeRows = Callable[..., Any]
every = pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.code)


def noted(values: Iterable[Mapping[str, Any]], every: int = 50) -> list[Event]:
    return [
        Event(time=0.0, rank=0, step=every * (i + 1), kind="numbers", data=dict(data))
        for i, data in enumerate(values)
    ]


def numbers(count: int = 8, **series: Any) -> list[Event]:
    """Records of a healthy run; a number or a list (its last value goes on) in place of some."""
    usual = {
        "dead_share": 0.0126, "dead_changed": 0.0, "input_npho_top": 0.8, "input_time_level": 0.6,
        "beta_over_spread_energy": 0.4, "beta_over_spread_angle": 0.06, "sentinel_targets": 0.0,
    }  # fmt: skip
    columns = {k: v if isinstance(v, list) else [v] for k, v in (usual | series).items()}
    return noted({k: v[min(i, len(v) - 1)] for k, v in columns.items()} for i in range(count))


def judged(rows: Any, events: list[Event], *, reported: Iterable[str] = ()) -> list[Finding]:
    judge = Judge(DETECTORS)
    judge.feed(rows, events)
    assert {one.data["error"].partition(":")[0] for one in judge.errors} == set(reported)
    return judge.findings


FIRES = {
    "XEC001": numbers(dead_changed=[0.0, 0.0, 0.02], dead_share=[0.0126, 0.0126, 0.0129]),
    "XEC002": numbers(input_npho_top=12000.0),
    "XEC003": numbers(beta_over_spread_energy=77.0),
    "XEC004": numbers(sentinel_targets=[0.0, 0.0, 1.5]),
}


@every
def test_every_detector_is_documented_like_the_others(detector: Any) -> None:
    text = document(detector)
    assert 20 < len(text.summary) < 95 and text.summary.endswith(".")
    assert tuple(text.sections) == SECTIONS
    assert all(len(body) > 40 for body in text.sections.values())
    assert detector.__module__.rsplit(".", 1)[-1] == detector.name
    assert re.fullmatch(r"XEC\d{3}", detector.code)


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


def test_healthy_runs_and_records_of_another_model_are_silent(make_rows: MakeRows) -> None:
    assert judged(make_rows(420), numbers()) == []
    other = noted([{"cosine": 0.0, "dead_share": 0.5, "input_npho_top": 1e9}] * 9)
    assert judged(make_rows(420), other) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "NaN", [1.0], True, -1e30])
def test_no_value_in_a_record_breaks_them(make_rows: MakeRows, value: Any) -> None:
    given = noted([dict.fromkeys(numbers(1)[0].data, value)] * 8)
    # What is no number does not reach them: the record says so, once.
    reported = ["RecordError"] if isinstance(value, bool | list | None) else []
    judged(make_rows(420), given, reported=reported)
    judged(make_rows(420), noted([{}] * 8))


def test_one_odd_batch_is_no_drift_and_more_dead_sensors_are(make_rows: MakeRows) -> None:
    assert judged(make_rows(420), numbers(dead_changed=[0.0, 0.1, 0.0, 0.1, 0.0])) == []
    (finding,) = judged(make_rows(420), numbers(dead_share=[0.0126, 0.0126, 0.03]))
    assert (finding.code, finding.step, finding.evidence["since"]) == ("XEC001", 200, 150)


def test_an_encoder_of_another_normalisation_is_information(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), numbers(norm_mismatch=1.0))
    assert (finding.code, finding.severity) == ("XEC002", Severity.INFO)
    assert finding.evidence["how"] == "foreign"


@pytest.mark.parametrize(("name", "value"), [("input_npho_top", 0.01), ("input_time_level", 1e3)])
def test_faint_inputs_and_late_times_are_reported(
    make_rows: MakeRows, name: str, value: float
) -> None:
    (finding,) = judged(make_rows(420), numbers(8, **{name: value}))
    assert finding.code == "XEC002" and finding.evidence["how"] in ("faint", "late")


# ------------------------------------------------------------------ from events to findings


def events(seed: int = 0, dead: slice = slice(0, 60), settings: Any = None) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    npho = torch.rand(32, 4760, generator=generator).pow(20) * 5e4
    npho[:, dead] = NOT_AVAILABLE
    time = torch.rand(32, 4760, generator=generator) * 1e-7
    return normalise(npho, time, settings or NormalizationSettings())


def plain(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in found.items()}


TASKS = {
    "energy": TaskSettings(enabled=True, loss_beta=0.005),
    "angle": TaskSettings(enabled=True),
    "n_gamma": TaskSettings(enabled=True, loss_fn="l1"),
}


def truths(count: int = 64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "energy": 0.015 + 0.045 * torch.rand(count, generator=generator),
        "angle": torch.randn(count, 2, generator=generator) * 15,
        "n_gamma": torch.ones(count, dtype=torch.int64),
    }


def test_numbers_of_healthy_events_are_silent_and_tell_the_truth(make_rows: MakeRows) -> None:
    health = SensorHealth()
    found = plain(health.numbers(events())) | plain(target_numbers(truths(), TASKS))
    assert found["dead_share"] == pytest.approx(60 / 4760) and found["dead_changed"] == 0
    assert found["beta_over_spread_energy"] == pytest.approx(0.005 / 0.013, rel=0.1)
    assert found["beta_over_spread_angle"] == pytest.approx(1 / 15, rel=0.2)
    assert "beta_over_spread_n_gamma" not in found and found["sentinel_targets"] == 0
    assert judged(make_rows(420), noted([found] * 8)) == []


def test_other_dead_sensors_fire_the_drift(make_rows: MakeRows) -> None:
    health = SensorHealth()
    first = plain(health.numbers(events()))
    later = plain(health.numbers(events(1, dead=slice(40, 100))))
    assert later["dead_changed"] == pytest.approx(80 / 4760)
    found = judged(make_rows(420), noted([first, later, later]))
    assert [(f.code, f.evidence["sensors"]) for f in found] == [("XEC001", 80)]


def test_the_wrong_scale_fires_the_range(make_rows: MakeRows) -> None:
    wrong = NormalizationSettings(npho_scheme="linear", npho_scale=1.0)
    found = judged(make_rows(420), noted([plain(SensorHealth().numbers(events(settings=wrong)))]))
    assert [f.evidence["how"] for f in found] == ["bright"]
    foreign = plain(SensorHealth(foreign=True).numbers(events()))
    assert [f.evidence["how"] for f in judged(make_rows(420), noted([foreign]))] == ["foreign"]


def test_a_beta_of_one_for_energies_in_gev_fires(make_rows: MakeRows) -> None:
    tasks = {"energy": TaskSettings(enabled=True)}
    found = judged(make_rows(420), noted([plain(target_numbers(truths(), tasks))]))
    assert [(f.code, f.evidence["task"]) for f in found] == [("XEC003", "energy")]
    alike = target_numbers({"energy": torch.full((8,), 0.0528)}, tasks)
    assert float(alike["beta_over_spread_energy"]) == 0, "one energy has no spread to compare with"


def test_sentinels_among_the_truths_fire_and_do_not_hide_the_spread(make_rows: MakeRows) -> None:
    targets = truths()
    targets["energy"][:2] = torch.tensor([NOT_AVAILABLE, math.nan])
    found = plain(target_numbers(targets, TASKS))
    assert found["sentinel_targets"] == 2
    assert found["beta_over_spread_energy"] == pytest.approx(0.005 / 0.013, rel=0.1)
    assert [f.code for f in judged(make_rows(420), noted([found]))] == ["XEC004"]


def test_hidden_sensors_without_a_value_are_counted() -> None:
    hidden = torch.tensor([[True, True, False]])
    found = hidden_numbers(hidden, torch.tensor([[True, False, False]]))
    assert float(found["sentinel_targets"]) == 1


def test_they_are_imported_without_torch() -> None:
    code = "import sys, holdfast_models.xec.detectors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

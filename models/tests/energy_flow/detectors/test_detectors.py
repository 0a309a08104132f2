"""The detectors of the lattice: silent where it learns, each on its own fault."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.detectors import (
    ALL,
    SECTIONS,
    document,
)
from holdfast.detectors.judge import Judge
from holdfast.report.replay import replay
from holdfast.run import LaneReader, Run
from holdfast.training import Place, Trainer, resolve
from holdfast.training.loop.progress import Progress
from holdfast.types import Event, Finding, Severity
from holdfast_models.energy_flow.detectors import DETECTORS
from holdfast_models.energy_flow.recipe import RECIPE, build

MakeRows = Callable[..., Any]
NAN, INF = float("nan"), float("inf")

# As runs of 8 x 8 x 4 have noted them.
NAMES = ("cosine", "completion_rate", "filled", "gru_input_absmax", "energy_std")
RESIDUAL = [
    (0.36, 1.0, 1.0, 2.26, 0.50), (0.70, 1.0, 1.0, 2.26, 0.50), (0.82, 1.0, 1.0, 2.26, 0.51),
    (0.87, 0.94, 1.0, 2.24, 0.51), (0.90, 0.99, 1.0, 2.42, 0.48), (0.91, 0.99, 1.0, 2.54, 0.46),
    (0.93, 0.96, 1.0, 2.61, 0.44), (0.94, 0.96, 1.0, 2.73, 0.43), (0.956, 0.87, 1.0, 2.86, 0.38),
]  # fmt: skip
TANH = [
    (0.39, 0.98, 1.0, 2.26, 0.0049), (0.48, 0.96, 1.0, 2.39, 0.041), (0.66, 1.0, 1.0, 2.66, 0.084),
    (0.76, 1.0, 1.0, 2.77, 0.104), (0.82, 1.0, 1.0, 2.82, 0.113), (0.86, 1.0, 1.0, 2.82, 0.118),
]  # fmt: skip
SPAWNING = [(0.56, 0.48, 1.0, 2.3, 0.53), (0.80, 0.47, 1.0, 2.2, 0.55), (0.86, 0.5, 1.0, 2.3, 0.5)]

every = pytest.mark.parametrize("detector", DETECTORS, ids=lambda d: d.code)


def noted(values: Iterable[Mapping[str, Any]], kind: str = "numbers", every: int = 50):
    return [
        Event(time=0.0, rank=0, step=every * (i + 1), kind=kind, data=dict(data))
        for i, data in enumerate(values)
    ]


def numbers(count: int = 8, **series: Any) -> list[Event]:
    """Records of a healthy run; a number or a list (its last value goes on) in place of some."""
    usual = {
        "cosine": [0.5, 0.7, 0.8, 0.85, 0.9], "completion_rate": 1.0, "mean_steps": 1.5,
        "filled": 1.0, "gru_input_absmax": 2.3, "gru_hidden_absmax": 0.5, "guarded": 0.0,
        "energy_std": 0.5, "loss": 0.3,
    }  # fmt: skip
    columns = {k: v if isinstance(v, list) else [v] for k, v in (usual | series).items()}
    return noted({k: v[min(i, len(v) - 1)] for k, v in columns.items()} for i in range(count))


def validations(*fvu: float, every: int = 100) -> list[Event]:
    data = [{"loss": 0.6, "cosine": 0.4, "fvu": one, "mrr": 0.1, "best": False} for one in fvu]
    return noted(data, "validation", every)


def judged(rows: Any, events: list[Event], *, reported: Iterable[str] = ()) -> list[Finding]:
    judge = Judge(DETECTORS)
    judge.feed(rows, events)
    assert {one.data["error"].partition(":")[0] for one in judge.errors} == set(reported)
    return judge.findings


# For each code, events that fire it alone.
FIRES = {
    "EFL001": numbers(completion_rate=[0.9, 0.0]),
    "EFL002": numbers(filled=[1.0, 0.004]),
    "EFL003": numbers(guarded=[0.0, 12.5], gru_input_absmax=[2.0, 11.0]),
    "EFL004": numbers(energy_std=[0.5, 0.5, 0.5, 0.01]),
    "EFL005": [*numbers(cosine=0.45), *validations(1.02, 1.01, 1.0, 1.0)],
}


@every
def test_every_detector_is_documented_like_the_others(detector: Any) -> None:
    text = document(detector)
    assert 20 < len(text.summary) < 95 and text.summary.endswith(".")
    assert tuple(text.sections) == SECTIONS
    assert all(len(body) > 40 for body in text.sections.values())
    assert detector.__module__.rsplit(".", 1)[-1] == detector.name
    assert re.fullmatch(r"EFL\d{3}", detector.code)


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
        heard = [e for e in events if start <= e.step < start + 7]
        live.feed(rows[start : start + 7], heard)
    assert live.findings == judged(rows, events)


@pytest.mark.parametrize("series", [RESIDUAL, TANH, SPAWNING], ids=["residual", "tanh", "spawning"])
def test_runs_that_learn_are_silent(make_rows: MakeRows, series: Any) -> None:
    events = noted(dict(zip(NAMES, one, strict=True), guarded=0.0) for one in series)
    events += validations(1.1, 0.8, 0.5, 0.3, 0.2)
    assert judged(make_rows(520), events) == []


def test_records_of_another_model_are_left_alone(make_rows: MakeRows) -> None:
    events = noted([{"cosine": 0.0, "filled": 0.0, "guarded": 3.0, "energy_std": 0.0}] * 9)
    events += noted([{"loss": 1.0, "cosine": 0.0}] * 9, "validation")
    assert judged(make_rows(500), events) == []


@pytest.mark.parametrize("value", [NAN, INF, None, "NaN", [1.0], True, -1e30])
def test_no_value_in_a_record_breaks_them(make_rows: MakeRows, value: Any) -> None:
    data = dict.fromkeys(numbers(1)[0].data, value)
    given = [*noted([data] * 8), *validations(*[value] * 4)]
    # What is no number does not reach them: the record says so, once.
    reported = ["RecordError"] if isinstance(value, bool | list | None) else []
    judged(make_rows(420), given, reported=reported)
    judged(make_rows(420), noted([{}] * 8))


def test_flows_that_were_never_to_finish_and_are_projected_are_information(
    make_rows: MakeRows,
) -> None:
    (finding,) = judged(make_rows(420), numbers(completion_rate=0.0))
    assert (finding.code, finding.severity) == ("EFL001", Severity.INFO)
    assert finding.step == 150 and finding.evidence["since"] == 50


def test_flows_that_stop_finishing_are_a_warning_and_one_record_is_none(
    make_rows: MakeRows,
) -> None:
    (finding,) = judged(make_rows(420), numbers(completion_rate=[0.9, 0.9, 0.9, 0.002]))
    assert finding.severity is Severity.WARNING
    assert finding.message == (
        "step 250: 0.2% of the flows reach a face since step 200 (90.0% at the start); "
        "all others are projected"
    )
    assert judged(make_rows(420), numbers(completion_rate=[0.0, 0.9, 0.0, 0.9])) == []


def test_a_surface_that_shrinks_is_a_warning(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), numbers(filled=[0.9, 0.5, 0.3, 0.05]))
    assert (finding.code, finding.severity, finding.step) == ("EFL002", Severity.WARNING, 250)
    assert judged(make_rows(420), numbers(filled=0.05)) == [], "little capacity is no fault"


def test_inputs_near_the_clip_are_information_but_not_beyond_it(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), numbers(gru_input_absmax=[2.0, 9.5]))
    assert (finding.code, finding.severity, finding.step) == ("EFL003", Severity.INFO, 150)
    assert judged(make_rows(420), numbers(gru_input_absmax=15.0)) == [], "the clip was set higher"


def test_one_record_with_guarded_inputs_is_reported_at_once(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), numbers(guarded=[0.0, 0.02, 0.0]))
    assert finding.step == finding.last_step == 100


def test_energies_that_run_away_have_to_be_wide_too(make_rows: MakeRows) -> None:
    (finding,) = judged(make_rows(420), numbers(energy_std=[0.4, 0.5, 0.5, 1.0, 2.2]))
    assert (finding.code, finding.evidence["how"]) == ("EFL004", "growth")
    assert judged(make_rows(420), numbers(energy_std=[0.01, 0.01, 0.01, 0.4])) == []


def test_overfitting_a_rising_rate_and_late_progress_are_no_idle_mapper(
    make_rows: MakeRows,
) -> None:
    stuck = validations(1.02, 1.01, 1.0, 1.0)
    assert judged(make_rows(420), [*numbers(), *stuck]) == []
    rising = [i * 1e-6 for i in range(420)]
    assert judged(make_rows(420, lr=rising), [*numbers(cosine=0.45), *stuck]) == []
    moving = [*numbers(cosine=0.45), *validations(1.3, 1.2, 1.1, 0.95)]
    assert judged(make_rows(420), moving) == []
    assert judged(make_rows(150), [*numbers(cosine=0.4), *validations(*[1.0] * 9, every=16)]) == []


def test_a_record_made_again_by_a_resumed_run_counts_once(make_rows: MakeRows) -> None:
    once = numbers(3, completion_rate=0.5)
    twice = numbers(2, completion_rate=0.0)
    assert judged(make_rows(130), [once[0], twice[1], twice[1]]) == []


# ------------------------------------------------------------------ small runs

TINY = [
    "model.lattice.width=4", "model.lattice.height=4", "model.lattice.depth=2", "model.width=16",
    "model.carrier.hidden=8", "model.carrier.layers=1", "model.flows.spawn_most=0", "data.width=16",
    "data.count=60", "train.data.batch=4", "train.data.workers=0", "bridge.on=false",
    "train.device=cpu", "train.epochs=null", "train.validation.epochs=0",
    "model.convergence.on=false", "train.clip=null",
]  # fmt: skip


def trained(path: Path, *more: str) -> list[Finding]:
    settings = resolve(RECIPE, None, None, [*TINY, *more], "none")
    torch.manual_seed(0)
    task = build(settings, Place(torch.device("cpu"), rank=1))
    task = dataclasses.replace(task, ended=None)  # no pictures: they take longer than the run
    Trainer.of(task, settings.train, run_dir=path, progress=Progress()).fit()
    lane = LaneReader(Run.open(path), "r0")
    return judged(lane.steps(), lane.events())


def test_a_small_run_that_learns_is_silent(tmp_path: Path) -> None:
    lasts = "train.steps=151", "train.optimizer.lr=3e-3", "train.validation.steps=50"
    assert trained(tmp_path / "run", *lasts) == []


def test_what_the_last_step_noted_is_judged_live_and_in_a_check(tmp_path: Path) -> None:
    """Its step is one past the last row, so that no row comes to tell it with."""
    trained(tmp_path / "run", "train.steps=50", "model.carrier.input_clip=0.5")
    run = Run.open(tmp_path / "run")
    (live,) = LaneReader(run, "r0").findings()
    assert (live.code, live.step) == ("EFL003", 50)
    assert replay(run, (*ALL, *DETECTORS)).findings == (live,)


@pytest.mark.slow
def test_a_small_run_that_loses_all_flows_cuts_inputs_and_learns_nothing(tmp_path: Path) -> None:
    found = trained(
        tmp_path / "run", "train.steps=251", "model.carrier.z_drift=0", "model.flows.end=drop",
        "model.flows.noise_cells=0", "train.optimizer.lr=1e-8", "train.validation.steps=50",
        "model.carrier.input_clip=0.5",
    )  # fmt: skip
    assert [f.code for f in found] == ["EFL001", "EFL002", "EFL003", "EFL005"]
    assert [f.severity for f in found][:2] == [Severity.ERROR, Severity.ERROR]
    assert [f.evidence.get("consequence") for f in found] == [None, "EFL001", None, "EFL002"]


def test_they_are_imported_without_torch() -> None:
    code = "import sys, holdfast_models.energy_flow.detectors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

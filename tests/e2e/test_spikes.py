"""Scripts that spike and noisy ones that are fine, written without knowledge of the guard.

What is true about each stands in the ``answers.json`` beside them. A sample is part of every test
run, all of them of ``make prove``; ``benchmarks/recovery.py`` makes the tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.types import Severity

from .conftest import Bench, Outcome

CORPUS = Path(__file__).parents[2] / "corpus"
SPIKING, NOISY = CORPUS / "2026-11-15-spikes", CORPUS / "2026-11-15-noisy"


def truths(folder: Path) -> dict[str, dict[str, Any]]:
    answers = json.loads((folder / "answers.json").read_text())
    return {answer["script"]: answer for answer in answers}


SPIKES, QUIET = truths(SPIKING), truths(NOISY)
SAMPLED = {"sensor_units.py", "ema_writeback.py"}
# The clean run learns from the six batches that the guarded one leaves out, late in training.
FURTHER = {"forecast_glitch.py": 0.10}


def chosen(names: list[str]) -> list[Any]:
    return [
        pytest.param(name, marks=[] if name in SAMPLED else [pytest.mark.slow], id=name)
        for name in names
    ]


# Scripts that make their own data: nothing beyond the skip of bad steps is done unasked.
OWN_DATA = {n for n in SPIKES if "DataLoader(" not in (SPIKING / n).read_text()}
ASKED = "OPT001=rollback", "OPT002=skip,clip", "OPT003=rollback,lower_lr"


def guarded(bench: Bench, name: str) -> Outcome:
    """A run of a spiking script; one without a loader is saved because that was asked for.

    Snapshots are as frequent as on a machine where they cost nothing: what the fastest of these
    scripts may spend on them, half a percent of a second, is one or two of a slow machine's.
    """
    flags = [word for rule in ASKED for word in ("--on", rule)] if name in OWN_DATA else []
    flags += ["--set", "rollback.cost=1"]
    return bench.guarded(bench.link(SPIKING / name), options=("--quiet", *flags))


def final(out: bytes) -> float:
    return float(out.split()[-1])


@pytest.mark.parametrize("name", chosen([n for n in SPIKES if SPIKES[n]["kind"] == "window"]))
def test_a_poisoned_window(bench: Bench, name: str) -> None:
    truth = SPIKES[name]
    outcome = guarded(bench, name)
    assert outcome.code == 0, outcome.reported
    assert bench.record.events("holdfast_error") == []
    rows = bench.record.steps()
    skipped = rows["step"][rows["skipped"] > 0].tolist()
    assert skipped == list(range(truth["first_step"], truth["last_step"] + 1))
    assert bench.record.events("rollback") == []
    assert final(outcome.out) <= truth["clean"] * (1.05 + FURTHER.get(name, 0.0))
    assert truth["plain"] > 3 * truth["clean"]


@pytest.mark.parametrize("name", chosen([n for n in SPIKES if SPIKES[n]["kind"] == "weights"]))
def test_damaged_weights(bench: Bench, name: str) -> None:
    truth = SPIKES[name]
    outcome = guarded(bench, name)
    assert outcome.code == 0, outcome.reported
    assert bench.record.events("holdfast_error") == []
    back = bench.record.events("rollback")
    assert back
    assert back[0].data["to"] < truth["first_step"]
    assert final(outcome.out) <= 1.5 * truth["clean"]
    assert {f.code for f in bench.record.findings() if f.severity >= Severity.ERROR} >= {"OPT001"}


@pytest.mark.parametrize("name", chosen([n for n in SPIKES if SPIKES[n]["kind"] == "divergence"]))
def test_divergence(bench: Bench, name: str) -> None:
    """Brought back with a lower learning rate, or stopped with the last good state saved."""
    truth = SPIKES[name]
    outcome = guarded(bench, name)
    assert bench.record.events("holdfast_error") == []
    assert "OPT003" in {f.code for f in bench.record.findings()}
    stops = bench.record.events("stop")
    if stops:
        assert outcome.code == 3
        assert Path(stops[0].data["checkpoint"]).exists()
    else:
        assert outcome.code == 0
        assert final(outcome.out) < 0.1 * truth["plain"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OWN_DATA))
def test_a_loop_that_makes_its_own_data_is_observed(bench: Bench, name: str) -> None:
    """Nothing is done unasked, and a finding says what was seen."""
    outcome = bench.guarded(str(SPIKING / name))
    assert outcome.code == 0, outcome.reported
    rows = bench.record.steps()
    assert not (rows["skipped"] > 0).any()
    assert bench.record.events("rollback") == []
    assert {f.code for f in bench.record.findings()} & {"OPT001", "OPT002", "OPT003"}


@pytest.mark.parametrize("name", chosen(list(QUIET)))
def test_noise_is_left_alone(bench: Bench, name: str) -> None:
    outcome = bench.guarded(str(NOISY / name))
    assert outcome.code == 0, outcome.reported
    assert bench.record.events("holdfast_error") == []
    assert bench.record.events("rollback") == []
    assert [f for f in bench.record.findings() if f.severity > Severity.INFO] == []

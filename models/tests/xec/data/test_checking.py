from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.data.checking import check_data, fit_normalization
from holdfast_models.xec.data.normalization import normalise
from holdfast_models.xec.data.synth_files import write_batches
from holdfast_models.xec.settings import DataSettings

DATA = DataSettings(time_branch="time")


@pytest.fixture
def sick(synth, tmp_path: Path) -> str:
    some = {key: rows[:40].clone() for key, rows in synth.events.items()}
    some["npho"][:6, 100] = torch.nan
    some["npho"][0, 200] = torch.inf
    some["time"][1, 300] = -torch.inf
    some["uvwFI"][2] = 1e10
    write_batches(tmp_path / "sick.root", iter([some]))
    return str(tmp_path)


def test_counts_ranges_and_dead_sensors(synth, sick: str) -> None:
    found = check_data(DATA, synth.normalization, sick)
    checks = {one.branch: one for one in found.branches}
    dead = synth.events["dead"][:40]
    assert (checks["npho"].nan, checks["npho"].inf, checks["time"].inf) == (6, 1, 1)
    assert checks["npho"].not_available == int(dead.sum())
    assert checks["uvwTruth"].not_available == 3 and checks["emiAng"].nan == 0
    assert checks["energyTruth"].low == float(synth.events["energy"][:40].min())
    assert found.dead == dead.all(0).nonzero()[:, 0].tolist()
    assert found.worst == [(100, 6), (200, 1)] and found.events == 40
    assert any("7 in npho, 1 in time" in line for line in found.advice)
    text = "\n".join(found.lines())
    assert f"dead sensors ({len(found.dead)})" in text and "100 (6), 200 (1)" in text
    assert json.loads(json.dumps(found.plain(), allow_nan=False))["worst"] == [[100, 6], [200, 1]]


def test_healthy_files_under_their_normalisation_need_no_advice(synth) -> None:
    found = check_data(DATA, synth.normalization, synth.train, events=50)
    assert found.events == 50 and found.advice == [] and not found.worst
    assert found.normalised["npho"]["outside"] < 0.001
    relative = check_data(DataSettings(), synth.normalization, synth.train, events=10)
    assert any("to train timing set data.time_branch=time" in one for one in relative.advice)


@pytest.mark.parametrize("wrong", [{"npho_scale": 1.0}, {"npho_scale": 1e9}, {"time_scale": 1e-10}])
def test_a_normalisation_that_does_not_suit_is_reported(synth, wrong: dict[str, float]) -> None:
    settings = dataclasses.replace(synth.normalization, **wrong)
    found = check_data(DATA, settings, synth.train, events=20)
    assert [one for one in found.advice if "normalization: fit" in one]


@pytest.mark.parametrize("scheme", ["log1p", "anscombe", "sqrt", "linear"])
def test_fitted_scales_bring_values_near_one(synth, scheme: str) -> None:
    start = dataclasses.replace(synth.normalization, npho_scheme=scheme)
    fitted = fit_normalization(DATA, start, synth.train, events=100)
    assert fitted.settings.npho_scheme == scheme and fitted.settings.npho_threshold == 100
    inputs = normalise(synth.events["npho"], synth.events["time"], fitted.settings)
    npho = inputs.x_BSC[..., 0][inputs.npho_valid_BS]
    time = inputs.x_BSC[..., 1][inputs.time_valid_BS]
    assert 0.7 < float(npho.sort().values[-len(npho) // 10000]) < 1.4
    assert -0.1 < float(time.median()) < 1.1
    assert ((time > -0.05) & (time < 1.05)).float().mean() > 0.97
    assert any(line.strip() == f"npho_scheme: {scheme}" for line in fitted.lines)
    if scheme != "linear":  # in which most sensors are hardly above 0, whatever the scale
        assert not check_data(DATA, fitted.settings, synth.train, events=20).advice


def test_nothing_to_fit_is_an_error(synth) -> None:
    dark = dataclasses.replace(synth.normalization, npho_threshold=1e8)
    with pytest.raises(HoldfastError, match="no sensor has a time and 1e\\+08 photons"):
        fit_normalization(DATA, dark, synth.train, events=10)

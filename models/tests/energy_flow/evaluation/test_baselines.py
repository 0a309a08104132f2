"""Baselines of ``eval``: trained as the run was, told in the table and in JSON."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from holdfast.cli import main
from holdfast.training import resolve, run_recipe
from holdfast_models.energy_flow.evaluation.baselines import Convolutions, baselines_of
from holdfast_models.energy_flow.evaluation.evaluate import evaluate
from holdfast_models.energy_flow.evaluation.loading import load_run
from holdfast_models.energy_flow.recipe import RECIPE

SMALL = (
    "model.lattice.width=4", "model.lattice.height=4", "model.carrier.hidden=8", "model.width=16",
    "data.width=16", "data.task=maps", "data.count=120", "train.steps=30", "train.data.workers=0",
    "train.device=cpu", "pictures=false",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("baselines") / "run"
    settings = resolve(RECIPE, preset="fields", overrides=SMALL, platform="none")
    assert run_recipe(RECIPE, settings, run_dir=folder, quiet=True) == 0
    return folder


def test_the_mappers_alone_are_what_a_run_without_a_core_reaches(run, tmp_path) -> None:
    loaded = load_run(run, device="cpu")
    found = evaluate(loaded, baselines=baselines_of(loaded))
    alone = dataclasses.replace(loaded.settings, core=False)
    assert run_recipe(RECIPE, alone, run_dir=tmp_path / "alone", quiet=True) == 0
    expected = evaluate(load_run(tmp_path / "alone", device="cpu"))
    assert found.references["mappers alone"] == expected.model
    assert found.parameters["mappers alone"] == expected.parameters["this model"]
    assert expected.flows == {} and found.flows


def test_eval_tells_the_time_first_then_every_row(run, capsys) -> None:
    capsys.readouterr()
    words = ["energy_flow", "eval", str(run), "--baselines", "--device", "cpu"]
    assert main(words) == 0
    out, err = capsys.readouterr()
    assert "mappers alone: 30 steps of training, about " in err
    names = ("this model", "training mean", "copied input", "ridge regression", "mappers alone",
             "five convolutions")  # fmt: skip
    lines = {name: next(s for s in out.splitlines() if s.startswith(name)) for name in names}
    assert lines["five convolutions"].endswith("28353")
    assert main([*words, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert set(reported["references"]) == set(names[1:])
    for name in names[1:]:
        assert f"{reported['references'][name]['fvu']:8.3f}" in lines[name]


def test_sentences_have_no_plane_for_convolutions(run) -> None:
    loaded = load_run(run, device="cpu")
    words = dataclasses.replace(
        loaded.settings.data, source="grammar", task="rewrite", split="compositional"
    )
    other = loaded._replace(settings=dataclasses.replace(loaded.settings, data=words))
    assert [one.name for one in baselines_of(other)] == ["mappers alone"]


def test_convolutions_begin_as_a_small_change_of_the_field() -> None:
    x_BE = torch.randn(3, 16) / 4
    torch.manual_seed(0)
    y_BE = Convolutions(16)(x_BE, step=1, seed=2, laps=None).y_BE
    assert torch.cosine_similarity(x_BE, y_BE).min() > 0.9

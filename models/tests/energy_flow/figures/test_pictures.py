from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError, Run
from holdfast.config import from_dict
from holdfast.training import run_recipe
from holdfast_models.curves import read_curves
from holdfast_models.energy_flow.figures.pictures import draw
from holdfast_models.energy_flow.figures.trajectories import record
from holdfast_models.energy_flow.model.energy_flow import EnergyFlow
from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.settings import ModelSettings
from holdfast_models.energy_flow.recipe import RECIPE
from holdfast_models.energy_flow.run_settings import EnergyFlowSettings

MakeModel = Callable[..., EnergyFlow]


@pytest.fixture
def busy_model(busy_core: Callable[..., Core]) -> MakeModel:
    """A model whose flows go different ways, children among them."""

    def make(**settings: dict[str, Any]) -> EnergyFlow:
        settings["flows"] = {"spawn_most": 1, "capacity": 500} | settings.get("flows", {})
        core = busy_core(**settings)
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = EnergyFlow(core.settings)
        model.core = core
        return model

    return make


@pytest.fixture
def x_BE() -> Tensor:
    return torch.randn(6, 384, generator=torch.Generator().manual_seed(5))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that noted its learning."""
    made = Run.create(tmp_path / "run", {})
    note(made, "validation", 10, {"loss": 0.9, "cosine": 0.3, "fvu": 1.4, "r1": 0.1, "best": True})
    note(made, "numbers", 50, {"loss": 0.8, "cosine": 0.4, "filled": 1.0})
    note(made, "validation", 60, {"loss": 0.5, "cosine": 0.6, "fvu": 0.7, "r1": 0.5, "best": True})
    return made


def note(
    run: Run, kind: str, step: int, data: Mapping[str, Any], *, rank: int = 0, lane: str = "r0"
) -> None:
    event = {"time": 1.7e9, "rank": rank, "step": step, "kind": kind, "data": data}
    with run.stream_path("events", lane).open("a") as file:
        file.write(json.dumps(event) + "\n")


def test_what_is_recorded_is_what_the_model_does(busy_model: MakeModel, x_BE: Tensor) -> None:
    # Without children: their number depends on how many samples share the capacity.
    model = busy_model(flows={"spawn_most": 0})
    trajectories = record(model, x_BE[:2])
    model.eval()
    out = model(x_BE[:2])
    assert trajectories is not None and out.flows is not None
    np.testing.assert_allclose(trajectories.out_BS, out.out_BS.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(trajectories.in_HW, out.surface_BHW[0].detach().numpy(), atol=1e-6)
    done = float(trajectories.living.low[-1] + trajectories.living.high[-1])
    assert done * 2 == out.flows.stats.done.item()
    assert trajectories.living.under_way[-1] * 2 == out.flows.stats.projected.item()


def test_every_flow_is_counted_once_at_every_moment(busy_model: MakeModel, x_BE: Tensor) -> None:
    model = busy_model(flows={"filter_below": 0.25})
    trajectories = record(model, x_BE)
    assert trajectories is not None and trajectories.samples == 4
    made = np.sum(trajectories.living, axis=0)
    assert made[0] == 30 and made[-1] > 30 and (np.diff(made) >= 0).all()
    assert trajectories.living.under_way[0] == 30
    assert min(float(counts[-1]) for counts in trajectories.living) > 0, "all of it happens here"
    np.testing.assert_allclose(trajectories.exits_3HW.sum(), made[-1])
    np.testing.assert_allclose(trajectories.exits_3HW[0].sum(), trajectories.living.low[-1])
    np.testing.assert_allclose(trajectories.exits_3HW[1].sum(), trajectories.living.high[-1])


def test_paths_lead_from_the_middle_plane_to_the_faces(busy_model: MakeModel, x_BE: Tensor) -> None:
    trajectories = record(busy_model(), x_BE)
    assert trajectories is not None
    start_N3, end_N3 = trajectories.place_TN3[0], trajectories.place_TN3[-1]
    first_N = np.isfinite(start_N3).all(-1)
    assert first_N[:30].all() and not first_N[30:].any(), "children are nowhere before their birth"
    assert len(first_N) > 30 and np.isfinite(end_N3).all()
    np.testing.assert_allclose(start_N3[:30, 2], 8, atol=1e-5)
    np.testing.assert_allclose(start_N3[:30, 0], np.arange(30) % 6, atol=1e-5)
    np.testing.assert_allclose(start_N3[:30, 1], np.arange(30) // 6, atol=1e-5)
    for face, height in ((1, 0), (2, 16)):
        assert (trajectories.exit_N == face).any()
        np.testing.assert_allclose(end_N3[trajectories.exit_N == face, 2], height, atol=1e-5)


def test_looking_leaves_the_model_as_it_was(busy_model: MakeModel, x_BE: Tensor) -> None:
    model = busy_model().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    record(model, x_BE)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_few_samples_of_a_large_lattice_are_followed(x_BE: Tensor) -> None:
    lattice = {"width": 160, "height": 150, "depth": 2}
    sizes: dict[str, Any] = {"hidden": 2, "layers": 1, "neuron_hidden": 1, "neuron_output": 1}
    settings = ModelSettings(lattice=lattice, carrier=sizes, mapper={"rank": 2})  # type: ignore[arg-type]
    trajectories = record(EnergyFlow(settings), x_BE)
    assert trajectories is not None and trajectories.samples == 1
    assert np.sum(trajectories.living, axis=0).max() <= 40_000


def test_curves_are_read_from_the_record(run: Run) -> None:
    note(run, "numbers", 50, {"loss": 99.0}, rank=1, lane="r1")
    note(run, "start", 0, {"loss": 99.0})
    with run.stream_path("events", "r0").open("a") as file:
        file.write('5\n{"kind": "numbers"}\n{"kind": "validation", "step": 70, "da')
    curves = read_curves(run.path)
    assert curves.training["loss"] == ([50], [0.8])
    assert curves.validation["fvu"] == ([10, 60], [1.4, 0.7])


def test_of_a_step_taken_twice_the_later_numbers_count(run: Run) -> None:
    note(run, "validation", 10, {"loss": 0.2})
    note(run, "validation", 20, {"loss": "NaN"})
    loss = read_curves(run.path).validation["loss"]
    assert loss.steps == [10, 20, 60] and loss.values[0] == 0.2 and math.isnan(loss.values[1])


@pytest.mark.slow
def test_a_model_that_is_not_finite_is_drawn(busy_model: MakeModel, x_BE: Tensor, run: Run) -> None:
    model = busy_model()
    assert model.core is not None
    with torch.no_grad():
        model.core.carrier.move_end.weight.fill_(math.nan)
    x_BE[0, 0] = math.inf
    note(run, "validation", 70, {"r1": "NaN", "fvu": "Infinity"})
    assert len(draw(model, (x_BE,), run.path)) == 5


def test_the_baseline_without_a_core_has_learning_curves_only(
    small_settings: Callable[..., ModelSettings], x_BE: Tensor, run: Run
) -> None:
    (file,) = draw(EnergyFlow(small_settings(), core=False), (x_BE,), run.path)
    assert file.name == "learning.png"
    (entry,) = json.loads((run.path / "pictures" / "pictures.json").read_text())
    assert "the lowest variance left was 0.7" in entry["caption"]


def test_without_matplotlib_one_line_says_how_to_get_it(
    busy_model: MakeModel, x_BE: Tensor, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HoldfastError, match=r"matplotlib.*holdfast-models\[plots\]"):
        draw(busy_model(), (x_BE,), run.path)
    assert not (run.path / "pictures").exists()


def settings(**more: Any) -> EnergyFlowSettings:
    given = {
        "model": {
            "lattice": {"width": 4, "height": 4, "depth": 4},
            "carrier": {"hidden": 8, "neuron_hidden": 4, "neuron_output": 4},
            "flows": {"spawn_most": 0},
            "width": 32,
        },
        "data": {"count": 120, "width": 32},
        "bridge": {"on": False},
        "train": {"steps": 3, "device": "cpu", "data": {"workers": 0}},
        **more,
    }
    return from_dict(given, kind=EnergyFlowSettings)


def test_a_run_ends_with_pictures_in_its_report(tmp_path: Path) -> None:
    assert run_recipe(RECIPE, settings(), run_dir=tmp_path / "run", quiet=True) == 0
    folder = tmp_path / "run" / "pictures"
    listed = json.loads((folder / "pictures.json").read_text())
    names = ["learning", "paths", "exits", "living", "energy"]
    assert [entry["file"] for entry in listed] == [f"{name}.png" for name in names]
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count('<img src="data:image/png;base64,') == 5
    for entry in listed:
        assert f"<h3>{entry['title']}</h3>" in page and entry["caption"] in page
        assert 5_000 < (folder / entry["file"]).stat().st_size < 500_000


def test_pictures_can_be_switched_off(tmp_path: Path) -> None:
    run_recipe(RECIPE, settings(pictures=False), run_dir=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "pictures").exists()

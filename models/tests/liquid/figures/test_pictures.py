from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError, Run
from holdfast_models.curves import Curve, Curves
from holdfast_models.liquid.continual.scores import TaskScores
from holdfast_models.liquid.figures import inside_figures, run_figures
from holdfast_models.liquid.figures.look import look
from holdfast_models.liquid.figures.pictures import draw
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.run_settings import LiquidSettings
from holdfast_models.liquid.settings import ModelSettings, PlasticitySettings

TOKENS = {"tokens": torch.arange(24).reshape(2, 12) % 11, "targets": torch.zeros(2, 12).long()}


def small_net(task: str = "llm", *, plastic: bool = False, **model: Any) -> LiquidNet:
    sizes: dict[str, Any] = {
        "hidden_dim": 16, "liquid_units": 6, "spiking_units": 5, "embedding_dim": 8,
        "attention": {"heads": 2},
    }  # fmt: skip
    shape = {"llm": (11, 11, 0), "vision": (1, 4, 8), "robotics": (3, 2, 0)}[task]
    torch.manual_seed(0)
    settings = ModelSettings(**(sizes | model))
    return LiquidNet(settings, Sizes(task, *shape), PlasticitySettings(on=plastic))


def gated_net() -> LiquidNet:
    return small_net(plastic=True, mamba={"on": True, "gate": True, "gate_heads": 2})


def note(run: Run, kind: str, step: int, data: Mapping[str, Any]) -> None:
    event = {"time": 1.7e9, "rank": 0, "step": step, "kind": kind, "data": data}
    with run.stream_path("events", "r0").open("a") as file:
        file.write(json.dumps(event) + "\n")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that recorded its learning and wrote its tables."""
    made = Run.create(tmp_path / "run", {})
    for step in (50, 100):
        numbers = {"loss": 3.0, "accuracy": 0.2, "fast_change": 1e-6, "fast_at_bound": 0.25}
        note(made, "numbers", step, numbers)
        note(made, "validation", step, {"loss": 3.1, "accuracy": 0.19})
    scores = TaskScores(["one", "two"])
    for trained, task, score in ((None, 0, 0.1), (0, 0, 0.8), (1, 0, 0.5), (1, 1, 0.9)):
        scores.set(trained, task, score)
    tables = made.path / "tables"
    tables.mkdir()
    (tables / "continual.json").write_text(json.dumps(scores.plain()))
    baselines = {"uniform": math.log(11), "unigram": 2.1, "most_frequent": 0.1}
    (tables / "baselines.json").write_text(json.dumps(baselines))
    return made


def listed(run: Run) -> dict[str, str]:
    entries = json.loads((run.path / "pictures" / "pictures.json").read_text())
    return {entry["file"].removesuffix(".png"): entry["caption"] for entry in entries}


def test_what_is_looked_at_is_what_the_network_does() -> None:
    net = gated_net().eval()
    inside = net(TOKENS["tokens"]).inside
    seen = look(net, TOKENS)
    for number, one in enumerate(inside):
        rate_TK = one.rate_BTK[0].detach().numpy()
        np.testing.assert_allclose(seen.train_STK[number].mean(0), rate_TK, atol=1e-6)
        assert one.opening_BTG is not None
        opening_TG = one.opening_BTG[0].detach().numpy()
        np.testing.assert_allclose(seen.opening_TG[number], opening_TG, atol=1e-6)
        tau_BTU = net.time_constants([one.driven_BTU for one in inside])[number]
        np.testing.assert_allclose(seen.tau_TU[number], tau_BTU[0].numpy(), rtol=1e-4)
    assert [one.shape for one in seen.fast_UK] == [(6, 5)] * 2


def test_looking_leaves_the_network_as_it_was() -> None:
    net = gated_net().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    look(net, TOKENS)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(module._forward_hooks for module in net.modules())


def test_everything_there_is_is_drawn_and_listed(run: Run) -> None:
    draw(gated_net(), TOKENS, run.path, settings=LiquidSettings())
    captions = listed(run)
    names = ["learning", "spikes_0", "spikes_1", "time_constants", "gates", "fast_weights", "tasks"]
    assert list(captions) == names
    assert "forgetting +0.300" in captions["tasks"] and "norm is 0." in captions["fast_weights"]
    for name in names:
        assert 4_000 < (run.path / "pictures" / f"{name}.png").stat().st_size < 300_000


@pytest.mark.parametrize(
    ("task", "batch"),
    [
        ("vision", {"image": torch.rand(2, 1, 8, 8), "label": torch.zeros(2)}),
        ("robotics", {"x": torch.rand(2, 9, 3), "y": torch.rand(2, 9, 2), "dt": torch.ones(2, 9)}),
    ],
)
def test_other_tasks_without_gates_tables_and_records(
    task: Any, batch: dict[str, Tensor], tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", {})
    net = small_net(task, num_layers=1, spikes={"persist": task == "robotics"})
    draw(net, batch, run.path, settings=LiquidSettings(task=task))
    assert list(listed(run)) == ["spikes_0", "time_constants"]


def test_a_network_that_is_not_finite_is_drawn(run: Run) -> None:
    net = gated_net()
    with torch.no_grad():
        for parameter in net.blocks[0].parameters():
            parameter.fill_(math.nan)
        net.synapses[0].fast.fill_(math.nan)
    note(run, "validation", 150, {"loss": "NaN", "accuracy": "NaN"})
    draw(net, TOKENS, run.path, settings=LiquidSettings())
    assert len(listed(run)) == 7


def test_without_matplotlib_one_line_says_how_to_get_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(HoldfastError, match=r"matplotlib.*holdfast-models\[plots\]"):
        draw(gated_net(), TOKENS, run.path, settings=LiquidSettings())
    assert not (run.path / "pictures").exists()


def test_the_levels_to_beat_are_in_the_picture_of_learning() -> None:
    curves = Curves({"loss": Curve([1, 2], [5.0, 3.0])}, {"accuracy": Curve([2], [0.3])})
    figure = run_figures.learning(curves, {"uniform": 5.545, "unigram": 3.1, "most_frequent": 0.17})
    left, right = figure.axes
    assert left.get_legend_handles_labels()[1] == [
        "training", "uniform, ln V: 5.54", "unigram entropy: 3.1",
    ]  # fmt: skip
    assert right.get_legend_handles_labels()[1] == ["validation", "most frequent token: 0.17"]
    robot = run_figures.learning(curves, {"linear": 0.2}, task="robotics")
    assert "linear model: 0.2" in robot.axes[0].get_legend_handles_labels()[1]


def test_the_matrix_of_scores_has_every_number_and_dashes_for_unknown_ones() -> None:
    scores = {"tasks": ["a", "b"], "untrained": [0.1, None], "after": [[0.9, 0.2], [0.4, 0.8]]}
    texts = [text.get_text() for text in run_figures.task_scores(scores).axes[0].texts]
    assert texts == ["0.100", "-", "0.900", "0.200", "0.400", "0.800"]
    nothing = {"tasks": ["a"], "untrained": [None], "after": [[None]]}
    assert [text.get_text() for text in run_figures.task_scores(nothing).axes[0].texts] == ["-"] * 2


def test_the_raster_shows_every_spike_and_the_rates() -> None:
    train_STK = np.zeros((4, 3, 2))
    train_STK[1, 2, 0] = 1
    left, right = inside_figures.spike_raster(train_STK).axes
    picture_KX = np.asarray(left.images[0].get_array())
    assert picture_KX.shape == (2, 12) and picture_KX[0, 2 * 4 + 1] == 1 == picture_KX.sum()
    assert [bar.get_width() for bar in right.patches] == [pytest.approx(1 / 12), 0]  # type: ignore[attr-defined]


def test_fast_weights_that_never_change_are_still_drawn_at_zero() -> None:
    recorded = {"fast_change": Curve([50, 100], [0.0, 0.0]), "fast_at_bound": Curve([50], [0.5])}
    figure = inside_figures.fast_weights([np.zeros((3, 2))], recorded)
    panel = figure.axes[2]
    assert panel.get_title() == "Over training, 50% at the bound"
    assert panel.get_ylim()[0] == 0 and panel.lines

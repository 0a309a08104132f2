from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import HoldfastError
from holdfast.training import run_recipe
from holdfast_models.curves import read_curves
from holdfast_models.liquid.evaluation.evaluate import evaluate
from holdfast_models.liquid.loading import Loaded, load_run
from holdfast_models.liquid.recipe import RECIPE, read_table

Trained = Callable[..., Loaded]


@pytest.fixture
def trained(settings_of: Any, tmp_path: Path) -> Trained:
    """A run of a few steps, loaded again."""

    def make(*overrides: str) -> Loaded:
        settings = settings_of("train.device=cpu", *overrides)
        assert run_recipe(RECIPE, settings, run_dir=tmp_path / "run", quiet=True) == 0
        return load_run(str(tmp_path / "run"))

    return make


def test_text_is_measured_in_nats_bits_and_right_answers(trained: Trained) -> None:
    loaded = trained("plasticity.on=true")
    found = evaluate(loaded, batch=7)
    ((name, numbers),) = found.tasks.items()
    data: Any = loaded.opened().validation
    batch = data.__getitems__(range(len(data))).batch
    with torch.no_grad():
        y_BTV = loaded.net(batch["tokens"]).y_BTV
    nats = torch.nn.functional.cross_entropy(y_BTV.flatten(0, 1), batch["targets"].flatten())
    right = (y_BTV.argmax(-1) == batch["targets"]).float().mean()
    assert numbers["samples"] == len(data)
    assert numbers["loss"] == pytest.approx(float(nats), rel=1e-4)
    assert numbers["accuracy"] == pytest.approx(float(right), abs=1e-5)
    bits = float(nats) / math.log(2) / data.bytes_per_token
    assert numbers["bits_per_byte"] == pytest.approx(bits, rel=1e-4)
    assert found.baselines["uniform"] == pytest.approx(math.log(loaded.net.sizes.outputs))
    first, last = found.lines()
    assert first.startswith(f"{name}: samples") and last.startswith("to beat: uniform 5.5")
    assert json.loads(json.dumps(found.plain()))["baselines"].keys() == found.baselines.keys()


def test_other_texts_are_read_with_the_tokenizer_of_the_run(
    trained: Trained, tmp_path: Path
) -> None:
    loaded = trained("data.tokenizer=bpe", "data.vocab_size=300")
    for number in range(12):
        (tmp_path / f"text{number}.txt").write_text(f"Number {number} and some more words. " * 40)
    (numbers,) = evaluate(
        loaded, [str(tmp_path / f"text{n}.txt") for n in range(12)]
    ).tasks.values()
    own = next(iter(evaluate(loaded).tasks.values()))
    assert numbers["loss"] != own["loss"] and numbers["samples"] != own["samples"]


@pytest.mark.parametrize(("task", "score"), [("vision", "accuracy"), ("robotics", "r2")])
def test_other_tasks_have_their_scores_beside_a_linear_model(
    task: str, score: str, trained: Trained
) -> None:
    loaded = trained(f"task={task}", "train.steps=2")
    found = evaluate(loaded)
    (numbers,) = found.tasks.values()
    assert set(numbers) == {"samples", "loss", score} and "linear" in found.baselines
    with pytest.raises(HoldfastError, match=rf"run of {task} reads no text"):
        evaluate(loaded, ["python"])


def test_every_task_of_a_continual_run_is_measured(trained: Trained) -> None:
    loaded = trained(
        "continual.on=true", "continual.num_tasks=2", "continual.tasks=permuted_vocabulary",
        "train.epochs=2", "train.steps=null", "data.megabytes=0.002", "data.sequence_length=48",
        "continual.consolidation=false",
    )  # fmt: skip
    reported, table = read_curves(loaded.run), read_table(loaded.run, "continual")
    assert reported.validation["forgetting"].values == [pytest.approx(table["forgetting"])]
    first, second = evaluate(loaded).tasks.values()
    assert first["samples"] == second["samples"] and first["loss"] != second["loss"]

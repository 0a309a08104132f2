"""``holdfast predict`` for the lattice: the embeddings of its trained model."""

from __future__ import annotations

from pathlib import Path

import torch

from holdfast.cli import main
from holdfast.training import MappedTensors, Place, load_weights, resolve, saved_config
from holdfast_models.energy_flow.recipe import RECIPE, build

SMALL = [
    "model.lattice.width=6", "model.lattice.height=6", "model.lattice.depth=4", "model.width=32",
    "model.carrier.hidden=16", "data.width=32", "data.count=120", "train.data.batch=16",
    "train.data.workers=0", "bridge.on=false", "train.device=cpu", "pictures=false",
    "train.steps=3",
]  # fmt: skip


def test_the_embeddings_are_those_of_the_trained_model(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [word for value in SMALL for word in ("--set", value)]
    assert main(["train", "energy_flow", "--quiet", "--run-dir", str(run), *words]) == 0
    assert main(["predict", str(run)]) == 0
    found = MappedTensors(run / "predictions" / "validation", ["y_BE"]).mapped("y_BE")

    settings = resolve(RECIPE, saved_config(run), platform="none")
    task = build(settings, Place(torch.device("cpu"), rank=1))
    load_weights(task.model, run)
    x_BE = torch.stack([task.validation[i][0] for i in range(8)])  # type: ignore[index]
    with torch.no_grad():
        expected_BE = task.model.eval()(x_BE, step=3).y_BE
    assert found.shape == (len(task.validation), 32)  # type: ignore[arg-type]
    torch.testing.assert_close(found[:8], expected_BE)

"""One run of each model, of one step: enough to be loaded, asked and exported."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.training import resolve, run_recipe
from holdfast_models.xec.kinds import recipe_of

TINY = [
    "model.encoder_dim=64", "train.data.batch=4", "train.data.workers=0", "train.device=cpu",
    "train.epochs=null", "train.steps=1", "train.validation.batches=1", "data.cache=none",
    "data.num_threads=1", "output.artifacts=false", "output.predictions=false", "output.onnx=null",
]  # fmt: skip
MORE = {
    "reg": ["model.hidden_dim=16", "tasks.timing.enabled=false", "tasks.uvwFI.enabled=false"],
    "mae": ["model.decoder_dim=8"],
    "inp": ["model.head_type=cross_attention", "model.cross_attn_hidden=8"],
}


@pytest.fixture(scope="session")
def tiny(synth: Any) -> list[str]:
    """The settings of the smallest runs on the events of the tests."""
    return [*TINY, f"data.train_path={synth.train}", f"data.val_path={synth.val}"]


@pytest.fixture(scope="session")
def run_of(
    tmp_path_factory: pytest.TempPathFactory, tiny: list[str], plugged_in: None
) -> Callable[[str], Path]:
    """The folder of a run of "reg", "mae" or "inp"; trained when it is first asked for."""
    made: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in made:
            threads = torch.get_num_threads()
            torch.set_num_threads(1)
            recipe = recipe_of(kind)
            settings = resolve(recipe, None, "small", [*tiny, *MORE[kind]], "none")
            folder = tmp_path_factory.mktemp("runs") / kind
            with contextlib.redirect_stdout(io.StringIO()):
                assert run_recipe(recipe, settings, run_dir=folder, quiet=True) == 0
            torch.set_num_threads(threads)
            made[kind] = folder
        return made[kind]

    return run

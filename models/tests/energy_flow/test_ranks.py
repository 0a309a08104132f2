"""The lattice on two ranks: the same weights on both, noise of their own, skipped together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.checkpoint.file import load
from holdfast.checkpoint.store import CheckpointStore
from holdfast.run import LaneReader, Run
from holdfast.training import Place, resolve
from holdfast_models.energy_flow.model.noise import Key, noise_seed, normal_N3
from holdfast_models.energy_flow.recipe import RECIPE, build

SMALL = [
    "model.lattice.width=4", "model.lattice.height=4", "model.lattice.depth=4", "model.width=16",
    "model.carrier.hidden=8", "model.flows.noise_cells=1.0", "data.width=16", "data.count=80",
    "bridge.width=8", "bridge.heads=2", "bridge.layers=1", "bridge.decoder_layers=1",
    "bridge.decoder_every=3", "train.data.batch=8", "train.data.workers=0", "train.device=cpu",
    "train.steps=8", "train.epochs=null", "pictures=false",
]  # fmt: skip

# One sample is not a number; only one of the ranks gets it.
POISONED = """
import dataclasses, math
from holdfast_models.energy_flow.recipe import RECIPE as SOUND

def build(settings, place):
    task = SOUND.build(settings, place)
    pairs = task.train.pairs
    pairs.tables.parts[0].x_NE[int(pairs._rows_N[5])] = math.nan
    return task

RECIPE = dataclasses.replace(SOUND, build=build)
"""


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_two_ranks_stay_one_and_skip_together(tmp_path: Path) -> None:
    """Steps in which the decoder takes no part are among them."""
    recipe, run = tmp_path / "poisoned.py", tmp_path / "run"
    recipe.write_text(POISONED)
    given = [word for one in SMALL for word in ("--set", one)]
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
            "-m", "holdfast", "train", str(recipe), "--run-dir", str(run), *given,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ended at step 8" in done.stdout
    lanes = [LaneReader(Run.open(run), lane) for lane in ("r0", "r1")]
    skipped = [lane.steps()["step"][lane.steps()["skipped"] > 0].tolist() for lane in lanes]
    assert len(skipped[0]) == 1 and skipped[0] == skipped[1]
    first, second = (_weights(run, rank) for rank in (0, 1))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]) and value.isfinite().all(), name
    losses = [lane.steps()["loss"][:3].tolist() for lane in lanes]
    assert losses[0] != losses[1], "they see different samples"


def _weights(run: Path, rank: int) -> dict[str, torch.Tensor]:
    entry = CheckpointStore(run / "checkpoints").latest(rank=rank)
    assert entry is not None
    return load(entry.path)[0]["models"]["model"]


def test_each_rank_has_noise_of_its_own_that_it_finds_again() -> None:
    flows_N = torch.arange(2000)
    noise = [normal_N3(Key(noise_seed(7, rank), 3), flows_N, 0) for rank in range(3)]
    assert torch.equal(noise[0], normal_N3(Key(7, 3), flows_N, 0)), "alone it is the seed itself"
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both = torch.stack((noise[one].flatten(), noise[other].flatten()))
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.05
    seeds = {noise_seed(seed, rank) for seed in (0, 1, 2**32 - 1) for rank in range(64)}
    assert len(seeds) == 3 * 64


def test_a_rank_asks_the_model_for_its_own_noise() -> None:
    settings = resolve(RECIPE, None, None, [*SMALL, "bridge.on=false"], "none")

    def asked(rank: int) -> int:
        task = build(settings, Place(torch.device("cpu"), rank, world=2))
        seen: list[int] = []

        def net(x_BE: torch.Tensor, **how: Any) -> Any:
            seen.append(how["seed"])
            return task.model(x_BE, **how)

        batch = task.train.__getitems__(range(4)).batch  # type: ignore[attr-defined]
        task.loss(net, batch)  # type: ignore[arg-type]
        return seen[0]

    assert asked(1) == asked(1) != asked(2)


def test_parameters_that_take_no_part_have_a_gradient_of_zero_where_ranks_wait_for_it() -> None:
    settings = resolve(RECIPE, None, None, SMALL, "none")
    task = build(settings, Place(torch.device("cpu"), 1, world=2))
    batch = task.train.__getitems__(range(4)).batch  # type: ignore[attr-defined]
    assert task.stepped is not None
    for step, at_rest in ((1, True), (3, False)):
        task.stepped(step)
        task.model.zero_grad()
        loss, _ = task.loss(task.model, batch)  # type: ignore[misc]
        loss.backward()
        missing = [name for name, one in task.model.named_parameters() if one.grad is None]
        decoder = task.model.bridge.decoder.parameters()  # type: ignore[union-attr]
        assert not missing
        assert all(not one.grad.any() for one in decoder) == at_rest  # type: ignore[union-attr]

"""A resumed run is clipped, skipped and told of its losses as the uninterrupted one is."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoint.tree import flatten, unflatten
from holdfast.config import Settings
from holdfast.guard.registry import OptimizerRegistry
from holdfast.guard.training import GuardedTraining
from holdfast.policy import Policy, Rule
from holdfast.recovery.rollback import Recovery
from holdfast.suspicion import DamageWatch

from .conftest import Bench, Ended
from .test_script import SCRIPTS

# A few samples are a hundred times too large, one is NaN; the first explosion is skipped and
# switches clipping on for a hundred steps.
SCRIPT = """
x = torch.randn(640, 6, generator=torch.Generator().manual_seed(3))
y = x.sum(1, keepdim=True)
x[[330, 331, 332, 500, 501]] *= 100
y[[330, 331, 332, 500, 501]] *= 100
x[404] = float("nan")
train = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=SHUFFLE)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.5)
total, step = 0.0, 0
for epoch in range(3):
    for a, b in train:
        loss = nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        total += loss.item()
        step += 1
    print(epoch, step, total)
told(model)
"""
COLUMNS = ("loss", "grad_norm", "outlier", "skipped", "clip", "norm_limit", "loss_limit")


DONE = ("loss", "grad_norm", "skipped", "clip")
"""A device's rows reach the host some steps late: when a new level is learned varies by as many."""


def same_rows(whole: Ended, resumed: Ended, columns: tuple[str, ...] = COLUMNS) -> None:
    """Every step of the resumed run is that of the other one, with what was done about it."""
    rows = whole.rows
    later = rows[rows["step"] >= resumed.rows["step"][0]]
    assert np.array_equal(later["step"], resumed.rows["step"])
    for column in columns:
        assert np.array_equal(later[column], resumed.rows[column], equal_nan=True), column


@pytest.mark.parametrize("path", ["host", pytest.param("device", marks=pytest.mark.slow)])
def test_outliers_that_straddle_a_checkpoint(bench: Bench, path: str):
    # When snapshots are taken depends on the time they cost, and so does what is rolled back to.
    also = ("rollback.snapshots=0",)
    also += ("guard.device_path=true",) if path == "device" else ()
    script = bench.script(SCRIPT.replace("SHUFFLE", "False"))
    whole = bench.run(script, every=7, also=also)
    assert whole.code == 0 and whole.refusal.get("accepted"), (whole.err, whole.refusal)
    rows = whole.rows
    skipped = rows["step"][rows["skipped"] > 0]
    assert len(skipped) and (rows["clip"] < 1).any() and np.isnan(rows["loss"]).any()
    at = {int(path.name[5:15]): path for path in whole.checkpoints}
    exploded, nan = int(skipped[0]), int(rows["step"][np.isnan(rows["loss"])][0])
    # Before the first explosion, while its norms are clipped, right before and after a NaN.
    wanted = [max(step for step in at if step < exploded), min(s for s in at if s > exploded)]
    wanted += [nan - 1, min(s for s in at if s > nan)]
    for checkpoint in [at[step] for step in wanted]:
        resumed = bench.run(script, checkpoint, every=7, also=also)
        assert resumed.code == 0, resumed.err
        assert resumed.out == whole.out, checkpoint
        same_rows(whole, resumed, DONE if path == "device" else COLUMNS)


def test_steps_of_two_optimizers_keep_their_numbers(bench: Bench):
    script = bench.script(SCRIPTS["two_optimizers"])
    whole = bench.run(script)
    resumed = bench.run(script, whole.checkpoints[1])
    assert resumed.code == 0 and resumed.out == whole.out, resumed.err
    rows, first = whole.rows, resumed.rows["step"][0]
    for column in ("step", "opt", "loss"):
        assert np.array_equal(rows[rows["step"] >= first][column], resumed.rows[column]), column


def through_json(tree: Any) -> Any:
    """A state as it comes back from a checkpoint."""
    skeleton, tensors = flatten(tree)
    return unflatten(json.loads(json.dumps(skeleton)), tensors)


def test_a_policy_goes_on_counting():
    rules = (Rule(on="OPT001", do=("rollback",), cooldown=5, budget=2, reset_after=100),)
    first, second = Policy(rules), Policy(rules)
    for step in (10, 20):
        first.allow("OPT001", step)
    second.restore(through_json(first.state()))
    assert second.rests("OPT001", 22)
    assert second.allow("OPT001", 60) == first.allow("OPT001", 60)
    assert second.allow("OPT001", 60).stop


def test_a_rollback_and_its_troubles_go_on():
    def made() -> Recovery:
        settings = Settings()
        policy = Policy.of(settings)
        registry = OptimizerRegistry(settings, policy)
        training = GuardedTraining(registry, settings.quarantine, pytest.fail, ())
        return Recovery(settings, training, policy)

    one = made()
    watch = DamageWatch(6, 12, usual=1.0, limit=2.0, in_vain={"NUM001": 7}, _start=1.0)
    one.open_incidents.watches[0] = watch
    one.open_incidents.rolled_back, one.open_incidents.level = 33, 0.5
    one._rollback_decision.lowered, one._back.best_left, one.attentive = 21, 0, True
    other = made()
    assert other.settled and other.state() != one.state()
    other.restore(through_json(one.state()))
    assert (
        other.state() == one.state() and other.open_incidents.watches == one.open_incidents.watches
    )
    watch.first = 40
    assert not one.settled, "suspected damage is not resumed from"

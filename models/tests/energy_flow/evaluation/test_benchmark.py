from __future__ import annotations

import torch

from holdfast.training import resolve
from holdfast_models.energy_flow.evaluation.benchmark import Work, bench, bench_lines
from holdfast_models.energy_flow.recipe import RECIPE
from holdfast_models.energy_flow.run_settings import EnergyFlowSettings

CPU = torch.device("cpu")


def small(*more: str) -> EnergyFlowSettings:
    lattice = [f"model.lattice.{name}=4" for name in ("width", "height", "depth")]
    sizes = [*lattice, "model.carrier.hidden=16", "train.data.batch=2", "bridge.on=false"]
    return resolve(RECIPE, overrides=[*sizes, "model.flows.spawn_most=0", *more])


def test_a_step_under_the_guard_trains_as_one_without_it():
    losses = []
    for guard in (False, True):
        work = Work(small(), CPU)
        work.model.train()
        torch.manual_seed(0)  # of the dropout
        with work.guarded(guard):
            losses.append([float(work.train(step)) for step in range(3)])
    assert losses[0] == losses[1] and losses[0][2] != losses[0][0]


def test_a_benchmark_says_by_which_mode_and_under_which_guard():
    found = bench(small(), CPU, steps=2, warmup=1, guard=True)
    assert found["mode"] == "dense" and found["guard"]
    assert "dense, fp32, cpu" in bench_lines(found)[1] and bench_lines(found)[1].endswith("guarded")
    assert Work(small("model.flows.mode=fused"), CPU).mode() == "fused, no pass yet"
    assert Work(small("core=false"), CPU).mode() == "no core"

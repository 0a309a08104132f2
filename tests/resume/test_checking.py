"""What was put back is compared with the checkpoint before a step is made."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.resume.values import restoring
from holdfast.resume.values.baseline import StartValues
from holdfast.resume.values.checking import difference
from holdfast.resume.values.taking import Taking
from holdfast.resume.values.tensors import SavedTensors

from .conftest import Bench
from .test_shared_memory import taken


class Meter:
    def __init__(self) -> None:
        self.total, self.best = 1.0, float("nan")


def state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    shared = [1, 2]

    def count() -> int:
        return len(shared)

    return {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "meter": Meter(),
        "rows": collections.deque([(1, "a"), (2, shared)]),
        "shared": shared,
        "count": count,
        "array": np.array([1.0, float("nan")]),
        "tensor": torch.arange(3),
        "names": {"b", "a"},
        "table": {"x": [1.0, 2.0], (1, 2): "pair"},
        "rng": np.random.default_rng(0),
    }


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "model.bias": lambda one: one["model"].bias.data.add_(1),
    "model.training": lambda one: one["model"].eval(),
    "optimizer.param_groups": lambda one: one["optimizer"].param_groups[0].update(lr=0.2),
    "meter.total": lambda one: setattr(one["meter"], "total", 2.0),
    "meter.other": lambda one: setattr(one["meter"], "other", None),
    "rows": lambda one: one["rows"].append(3),
    "shared": lambda one: one["rows"].__setitem__(1, (2, [1, 2])),
    "count": lambda one: one.update(count=None),
    "array": lambda one: one["array"].__setitem__(0, 2),
    "tensor": lambda one: one["tensor"].add_(1),
    "names": lambda one: one["names"].add("c"),
    "table['x'][1]": lambda one: one["table"]["x"].__setitem__(1, -2.0),
    "table": lambda one: one["table"].update(y=1),
    "rng": lambda one: one["rng"].random(),
}


@pytest.mark.parametrize("where", ["", *CHANGES])
def test_whatever_is_not_what_it_was_is_found(where: str) -> None:
    nodes, here = taken(state()), state()
    if where:
        CHANGES[where](here)
    taking = Taking(SavedTensors(), StartValues(), lambda name: True)
    again = {name: taking.take(value, f"0/{name}") for name, value in here.items()}
    found = [difference(nodes[name], again[name], f"0/{name}") for name in nodes]
    first = next(filter(None, found), "")
    assert first.startswith(f"0/{where}") if where else not first


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_value_that_is_as_the_script_made_it_may_be_written_by_its_digest(kind: str) -> None:
    values: dict[str, Any] = {"array": np.arange(3.0), "tensor": torch.arange(3.0)}
    one = {kind: values[kind]}
    baseline = StartValues()
    full = taken(one)[kind]
    taken(one, baseline, first=True)
    made = taken(one, baseline)[kind]
    one[kind] += 1
    assert (full["#"], made["#"]) == (kind, "made")
    assert not difference(full, made, "0/v") and not difference(made, full, "0/v")
    assert difference(made, taken(one)[kind], "0/v") == "0/v"


def test_a_mistake_in_putting_back_ends_the_process(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = bench.script(
        """
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        sums = np.zeros(2)
        for step in range(20):
            x = torch.randn(16, 6)
            loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            sums = sums + loss.item()
        told(model)
        """
    )
    whole = bench.run(script)
    assert whole.code == 0, whole.err

    def wrong(self: Any, live: Any, node: Any, path: str) -> Any:
        return node["v"] + 1

    monkeypatch.setitem(restoring._METHODS, "array", wrong)
    again = bench.run(script, resume=whole.checkpoints[1])
    assert again.code == 2 and not again.out
    assert "cannot resume: sums is not what it was at the checkpoint, at train.py:" in again.err


def test_two_generators_that_were_one_at_first_are_refused(bench: Bench) -> None:
    script = bench.script(
        """
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        order = noise = np.random.default_rng(0)
        for step in range(20):
            if step == 3:
                noise = np.random.default_rng(5)
            x = torch.randn(16, 6) + float(noise.random()) + float(order.random())
            loss = nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long())
            optimizer.zero_grad(); loss.backward(); optimizer.step()
        told(model)
        """
    )
    whole = bench.run(script)
    assert whole.code == 0 and len(whole.checkpoints) > 1, whole.err
    again = bench.run(script, resume=whole.checkpoints[1])
    assert again.code == 2 and not again.out
    assert "cannot resume: order is not what it was at the checkpoint" in again.err

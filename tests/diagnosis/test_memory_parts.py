"""What weights, gradients and optimizer state take is read rarely, and told when it changed."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from holdfast.diagnosis.memory.parts import MemoryParts
from holdfast.diagnosis.throughput.measured_lines import MeasuredLines


def test_parts_are_read_on_steps_further_and_further_apart():
    model = nn.Linear(100, 50)
    optimizer = torch.optim.Adam(model.parameters())
    reported = []
    training = SimpleNamespace(
        optimizers=lambda: [(optimizer, []), (optimizer, [])],
        record=reported.append,
    )
    parts = MemoryParts(training)  # type: ignore[arg-type]
    parts.step_ended(7)
    assert reported == []
    model(torch.randn(2, 100)).sum().backward()
    optimizer.step()
    parts.step_ended(8)
    weights = 4 * (100 * 50 + 50)
    assert reported[0].kind == "memory_parts"
    data = reported[0].to_dict()
    assert data["device"] == "cpu"
    assert data["weights"] == data["gradients"] == weights, "shared parameters count once"
    assert 2 * weights <= data["optimizer_state"] <= 2 * weights + 64
    for step in range(9, 64):
        parts.step_ended(step)
    assert len(reported) == 1, "nothing has changed"
    optimizer.zero_grad()
    parts.step_ended(64)
    assert reported[-1].gradients == 0


def test_an_optimizer_of_an_unknown_kind_ends_nothing():
    def broken():
        raise AttributeError("no param_groups")

    parts = MemoryParts(SimpleNamespace(optimizers=broken))  # type: ignore[arg-type]
    parts.step_ended(8)


def test_places_come_with_the_lines_around_them(tmp_path):
    file = tmp_path / "train.py"
    lines = [
        "def train(loader):",
        "    for x in loader:",
        *["        pass"] * 20,
        "        save(x)",
    ]
    file.write_text("\n".join(lines) + "\n")
    places = MeasuredLines()
    places.number((str(file), 23))
    (source,) = places.reported()["source"]
    assert (23, "        save(x)") in source and (2, "    for x in loader:") in source
    assert len(source) == 6, "four lines on either side, and the head of the loop"


def test_an_event_does_not_quote_a_whole_program(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("x = 1\n" * 2000)
    places = MeasuredLines()
    for line in range(1, 2000, 10):
        places.number((str(file), line))
    assert len(places.reported()["source"][0]) <= 160

"""Events about non-finite values: what a real training writes is what is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.detectors.judge import Judge
from holdfast.records import Kind, RecordError, read
from holdfast.records.nonfinite import BatchReplay, Cause
from holdfast.run import decode, encode
from holdfast.types import Event, Finding
from tests.guard.conftest import MakeEngine
from tests.guard.conftest import make_engine as make_engine


def log_of_zero() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.rand(12, 4)
    data[5] = 0
    for (x,) in DataLoader(TensorDataset(data), 4):
        opt.zero_grad()
        (model(x) * x.sum(1, keepdim=True).log()).mean().backward()
        opt.step()


def bad_sample() -> None:
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.rand(12, 4)
    data[5, 2] = torch.nan
    for (x,) in DataLoader(TensorDataset(data), 4):
        opt.zero_grad()
        model(x).mean().backward()
        opt.step()


def bad_weight() -> None:
    model = nn.Linear(4, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        if step == 1:
            with torch.no_grad():
                model.weight[0, 0] = torch.nan
        opt.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        opt.step()


def carried_state() -> None:
    cell = nn.GRUCell(2, 3)
    opt = torch.optim.SGD(cell.parameters(), lr=0.1)
    h = torch.zeros(4, 3)
    for step in range(7):
        h = cell(torch.full((4, 2), torch.nan if step == 2 else 1.0), h.detach())
        opt.zero_grad()
        h.sum().backward()
        opt.step()


Loop = Callable[[], None]
# A loop, the kind that it leads to, and what its record says.
WRITTEN: dict[str, tuple[Loop, type[Kind], dict[str, Any], dict[str, Any]]] = {
    "forward": (log_of_zero, Cause, {}, {"phase": "forward", "op": "log", "sample": 5}),
    "input": (bad_sample, Cause, {}, {"phase": "input", "samples": ((1, 5),)}),
    "parameter": (bad_weight, Cause, {}, {"phase": "parameter", "layer": "weight"}),
    "carried": (carried_state, Cause, {}, {"phase": "carried", "variable": "h"}),
    "again": (log_of_zero, BatchReplay, {"device_path": True}, {"batches": 1}),
}


def written(make_engine: MakeEngine, loop: Loop, kind: type[Kind], **how: Any) -> dict[str, Any]:
    """The data of the last event of a kind, as they are in the file."""
    engine: Any = make_engine(**how)
    loop()
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")
    return decode(encode(engine.memory.of_kind(kind.kind)[-1]))


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_is_a_record(make_engine: MakeEngine, name: str) -> None:
    loop, kind, how, said = WRITTEN[name]
    data = written(make_engine, loop, kind, **how)
    record = read(kind.kind, data)
    assert isinstance(record, kind), record
    assert {key: getattr(record, key) for key in said} == said
    assert decode(encode(record.to_dict())) == data
    assert kind.from_dict(record.to_dict()) == record


def judged(rows: Any, data: dict[str, Any]) -> tuple[list[str], Finding]:
    """What a judge says of an event that is no record, and its finding."""
    judge = Judge()
    judge.feed(rows, [Event(time=0.0, rank=0, step=1, kind=Cause.kind, data=data)])
    return [event.data["error"] for event in judge.errors], judge.findings[0]


def renamed(data: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in data.items()}


def test_a_key_of_another_name_is_reported(make_engine: MakeEngine) -> None:
    data = written(make_engine, log_of_zero, Cause)
    rows = np.zeros(3, dtype=[("step", "<i8"), ("loss", "<f4"), ("loss_bad", "<f4")])
    rows["step"], rows["loss"], rows["loss_bad"] = [0, 1, 2], [1, np.nan, 2], [0, 1, 0]

    errors, finding = judged(rows, data)
    assert not errors and finding.evidence["headline"] == "log of 0"
    errors, finding = judged(rows, renamed(data, "phase", "pass"))
    assert errors == ["RecordError: cause: no key 'phase', and the unknown key 'pass'"]
    assert "cause" not in finding.evidence
    nested = {**data, "output": renamed(data["output"], "inf", "infinite")}
    errors, _ = judged(rows, nested)
    assert errors == ["RecordError: cause: output: TensorStats: the unknown key 'infinite'"]


def test_a_run_of_version_0_1_has_fewer_keys() -> None:
    data = {"how": "replay", "phase": "forward", "file": "a.py", "line": 3, "sample": 4, "row": 1}
    assert Cause.from_dict(data).first_line == 3
    with pytest.raises(RecordError):
        Cause.from_dict({**data, "line": "3"})

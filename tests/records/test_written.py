"""Real writers hand on records, and what one of them renames is told by the process that reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.actions.quarantine import Quarantine
from holdfast.config import QuarantineSettings
from holdfast.detectors.judge import Judge
from holdfast.guard.fast.torch_time_saved import TorchTimeSaved
from holdfast.guard.training import _environment
from holdfast.probes.batches import Batch
from holdfast.probes.cost_budget import MEASUREMENTS, CostBudget
from holdfast.records import Kind, fault
from holdfast.records.base import event_from
from holdfast.records.ranks import MadeAt, Parallel, PassEnds
from holdfast.records.recovery import ClippingSwitched
from holdfast.records.run import End
from holdfast.records.steps import LossPart, NamedLosses, ScalerChange
from holdfast.records.times import TimeSaved
from holdfast.run.checked import event_of
from holdfast.run.jsonl import decode, encode


def torch_time_saved() -> TimeSaved:
    found: list[TimeSaved] = []
    clock, steps = TorchTimeSaved(found.append), nn.Linear(1, 1)
    for _ in range(40):
        clock.turn(steps)
        clock.took(3e-4 if clock.own else 1e-4, steps=1)
    return found[0]


def quarantined() -> Kind:
    x = torch.ones(4, 2)
    x[2, 0] = math.nan
    data = torch.utils.data.TensorDataset(torch.ones(9, 2))
    quarantine = Quarantine(QuarantineSettings(skip=True))
    _, (sample,) = quarantine.look([Batch(x, [5, 6, 7, 8], 0, 0, dataset=lambda: data)])
    return sample.replace(opt=1)


MADE = MadeAt(file="train.py", line=7)
WRITTEN: list[Kind] = [
    _environment(3),
    End(steps=9, skipped=1),
    CostBudget(0.02).facts(MEASUREMENTS),
    torch_time_saved(),
    quarantined(),
    NamedLosses(number=7, parts=(LossPart(name="a", file="b.py", line=3, kind="Add"),), summed=2),
    ScalerChange(what="explosion", scale=math.inf),
    ClippingSwitched(opt=0, on=True, limit=2.5, why="", asked_by=1),
    PassEnds(number=1),
    Parallel(wrapper="ddp", settings={"momentum": "0.9"}, made=MADE, parts=(MADE, MadeAt())),
]


@pytest.mark.parametrize("record", WRITTEN, ids=lambda record: record.kind)
def test_what_is_written_is_read_as_it_was(record: Kind) -> None:
    line: Any = decode(encode(event_from(3, record, 0).to_dict()))
    assert event_of(line).record == record


@pytest.mark.parametrize("record", WRITTEN, ids=lambda record: record.kind)
def test_a_key_that_was_renamed_is_reported(record: Kind) -> None:
    data = record.to_dict()
    data["renamed"] = data.pop(next(iter(data)))
    line = {"time": 1.0, "rank": 0, "step": 3, "kind": record.kind, "data": data}
    event = event_of(line)
    assert "the unknown key 'renamed'" in fault(event) and type(record).of(event) is None
    judge = Judge(())
    judge.feed(events=[event, event])
    (error,) = judge.errors
    assert error.data["where"] == f"reading an event {record.kind}"

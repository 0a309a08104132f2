"""What a step calls is told apart where the guard runs it in torch's place."""

from __future__ import annotations

import sys

import torch
from torch import nn

from holdfast.diagnosis.throughput.line_times import LineTimes

from .conftest import MakeEngine


def test_the_trace_marks_what_the_guard_runs_itself(make_engine: MakeEngine):
    make_engine(device_path=False)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lines = LineTimes()
    assert lines.begin(sys._getframe())
    try:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            lines.step(0.0)
    finally:
        lines.stop(sys._getframe())
    marks = {line.mark for line in lines.profile().lines if not line.direct}
    assert marks >= {"model", "backward", "optimizer"}

"""Bad steps in a row: the tensor of the script that carries the NaN on is named, and no other."""

from __future__ import annotations

import linecache
import textwrap
from typing import Any

import pytest
import torch

from holdfast.detectors import remedy
from holdfast.records.nonfinite import Cause
from holdfast.source.carried import carried_by_loop

from ..guard.conftest import MakeEngine
from ..guard.conftest import make_engine as make_engine

MODELS = """
import torch
from torch import nn
BAD = (3,)
def data():
    for step in range(12):
        x = torch.full((4, 2), 0.1 * step)
        yield step, x * torch.nan if step in BAD else x
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(2, 3), nn.Linear(3, 1)
        self.state, self.last = None, None
    def forward(self, x, state=None):
        state = self.cell(x, state)
        return self.head(state[0]), state
net = Cell()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
LOOPS = {
    "a state of two": (
        """
        state = None
        for step, x in data():
            out, state = net(x, state)
            state = tuple(s.detach() for s in state)
            out.sum().backward()
            opt.step()
            opt.zero_grad()
        """,
        "state",
    ),
    "through a function": (
        """
        def train_step(x, h):
            h = net.cell(x, (h, h))[0]
            net.head(h).sum().backward()
            opt.step()
            opt.zero_grad()
            return h.detach()
        hidden = torch.zeros(4, 3)
        for step, x in data():
            hidden = train_step(x, hidden)
        """,
        "hidden",
    ),
    "an attribute of a trainer": (
        """
        class Trainer:
            def __init__(self):
                self.h = torch.zeros(4, 3)
            def step(self, x):
                h = net.cell(x, (self.h, self.h))[0]
                net.head(h).sum().backward()
                opt.step()
                opt.zero_grad()
                self.h = h.detach()
        trainer = Trainer()
        for step, x in data():
            trainer.step(x)
        """,
        "self.h",
    ),
    "a baseline of the loss": (
        """
        mean = torch.zeros(())
        for step, x in data():
            loss = net(x)[0].sum()
            mean = 0.9 * mean + 0.1 * loss.detach()
            (loss - mean).square().backward()
            opt.step()
            opt.zero_grad()
        """,
        "mean",
    ),
    "a sum that is only printed": (
        """
        BAD = (3, 4, 5, 6)
        total = torch.zeros(())
        for step, x in data():
            loss = net(x)[0].sum()
            total = total + loss.detach()
            loss.backward()
            opt.step()
            opt.zero_grad()
        print(total)
        """,
        "",
    ),
    "what is made anew in each step": (
        """
        BAD = (3, 4, 5, 6)
        for step, x in data():
            h = torch.zeros(4, 3)
            h = net.cell(x, (h, h))[0]
            net.last = h.detach()
            loss = net.head(h).sum()
            loss.backward()
            opt.step()
            opt.zero_grad()
        """,
        "",
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_what_carries_it_on_is_named(make_engine: MakeEngine, name: str, tmp_path: Any) -> None:
    engine = make_engine(replay=False)
    loop, expected = LOOPS[name]
    path = tmp_path / "train.py"
    source = MODELS + textwrap.dedent(loop)
    path.write_text(source)
    linecache.checkcache(str(path))
    torch.manual_seed(0)
    exec(compile(source, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    reported = map(Cause.from_dict, engine.memory.of_kind("cause"))  # type: ignore[attr-defined]
    carried = [cause for cause in reported if cause.phase == "carried"]
    assert [cause.variable for cause in carried] == ([expected] if expected else [])
    for cause in carried:
        assert expected in source.splitlines()[cause.line - 1]
        said = remedy(cause)
        assert f"{expected} carries NaN" in said.headline and "reset it" in said.text


def test_an_attribute_that_forward_reads_before_it_writes_it(
    make_engine: MakeEngine, tmp_path: Any
) -> None:
    """The module keeps its state itself."""
    path = tmp_path / "model.py"
    text = """
    import torch
    from torch import nn
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.h, self.seen = nn.GRUCell(2, 3), torch.zeros(4, 3), None
        def forward(self, x):
            h = self.cell(x, self.h)
            self.h = h.detach()
            self.seen = h.detach()
            return h
    """
    path.write_text(textwrap.dedent(text))
    space: dict[str, Any] = {"__name__": "model"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    engine = make_engine(replay=False)
    net = space["Net"]()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(8):
        net(torch.full((4, 2), torch.nan if step == 2 else 1.0)).sum().backward()
        opt.step()
        opt.zero_grad()
    engine.close()
    reported = map(Cause.from_dict, engine.memory.of_kind("cause"))  # type: ignore[attr-defined]
    found = [(cause.variable, cause.line) for cause in reported if cause.phase == "carried"]
    assert found == [("self.h", 10)]


def test_a_line_outside_of_any_loop(tmp_path: Any) -> None:
    path = tmp_path / "flat.py"
    path.write_text("x = 1\ny = x\n")
    assert carried_by_loop(str(path), 2) == {} == carried_by_loop(str(tmp_path / "none.py"), 1)


LEFT = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.size = nn.Linear(2, 1), 0, 4
    def forward(self, x):
        self.calls += 1
        return self.layer(x)
net = Net()
average = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    net(torch.full((4, 2), torch.nan if step in BAD else 1.0)).sum().backward()
    opt.step()
    opt.zero_grad()
    average.update_parameters(net)
"""


@pytest.mark.parametrize("bad", [(), (2, 4)])
def test_what_a_skipped_step_leaves_behind_is_reported_once(
    make_engine: MakeEngine, bad: tuple[int, ...], tmp_path: Any
) -> None:
    """By name and line, and only where a step was skipped."""
    path = tmp_path / "train.py"
    path.write_text(LEFT)
    linecache.checkcache(str(path))
    engine = make_engine(replay=False)
    space = {"__name__": "__main__", "__file__": str(path), "BAD": bad}
    exec(compile(LEFT, str(path), "exec"), space)
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    reported = [data["why"] for data in engine.memory.of_kind("not_covered")]  # type: ignore[attr-defined]
    about = [why for why in reported if "counts skipped steps" in why]
    assert len(about) == (2 if bad else 0)
    if bad:
        assert "self.calls of Net" in about[0] and ":10)" in about[0]
        assert "AveragedModel.update_parameters" in about[1] and ":19)" in about[1]

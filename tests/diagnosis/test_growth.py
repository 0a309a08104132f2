"""The parts of the memory profiles: graphs, source, lines, sizes."""

from __future__ import annotations

import sys
import sysconfig
from itertools import pairwise
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from holdfast.diagnosis.memory import growth_facts, look_schedule, references, value_sizes
from holdfast.diagnosis.memory.graphs import (
    now,
    number_of,
    reach,
    touches,
)
from holdfast.diagnosis.memory.references import walk
from holdfast.diagnosis.memory.sizes import Weight
from holdfast.diagnosis.watchpoint import ValueChange, Watchpoint
from holdfast.training.task import Task

# A search ends after some milliseconds: of a clock that no other process makes go faster.
pytestmark = pytest.mark.usefixtures("clock")


def test_how_far_a_graph_reaches_back():
    weight = torch.ones(3, requires_grad=True)
    old = weight * 2
    border = now()
    new = (old + weight * 3).sum()
    found = reach(new.grad_fn, border)
    assert found.entries == [number_of(old.grad_fn)] and found.oldest < border
    fresh = reach((weight * 4).sum().grad_fn, border)
    assert fresh.entries == [] and fresh.oldest >= border


def test_graphs_of_one_look_are_walked_once():
    weight = torch.ones(2, requires_grad=True)
    kept = weight * 2
    border = now()
    hidden = (weight * 3).exp()
    loss, chained = hidden.sum(), (hidden + kept).sum()
    young: dict[Any, int] = {}
    assert reach(loss.grad_fn, border, young=young).oldest >= border
    assert hidden.grad_fn in young
    known = len(young)
    assert reach(hidden.grad_fn, border, young=young).oldest >= border and len(young) == known
    old = reach(chained.grad_fn, border, young=young)
    assert old.oldest < border and len(old.entries) == 1, "what is known hides nothing beside it"
    assert chained.grad_fn not in young


def test_what_grows_is_paced_by_both_looks_of_a_round(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(look_schedule, "perf_counter", lambda: clock[0])
    schedule, rounds = look_schedule.LookSchedule(), list[int]()
    for step in range(400):
        clock[0] = step * 0.01
        if schedule.due(step) and schedule.looked(step, 0.002):
            schedule.plan(step, 0)
            if schedule.close:
                rounds.append(step)
    late = [b - a for a, b in pairwise(rounds) if a > 50]
    assert late and all(gap >= 20 for gap in late), "4 ms are 2 % of 20 steps of 10 ms"


def test_whether_a_graph_has_nodes_of_a_stretch():
    weight = torch.ones(3, requires_grad=True)
    low = now()
    inside = weight * 2
    high = now()
    assert touches((inside + 1).sum().grad_fn, low, high)
    assert not touches((weight + 1).sum().grad_fn, low, high)
    assert not touches(None, low, high)


@pytest.mark.slow
@pytest.mark.parametrize("count", [200, 5000])
@pytest.mark.parametrize("kind", ["modules", "attributes"])
def test_many_things_hide_nothing_beside_them(monkeypatch, kind, count):
    monkeypatch.setattr(references, "_OBJECTS", 1000)  # what a slow machine has time for
    if kind == "modules":
        things: object = torch.nn.ModuleList([torch.nn.Linear(1, 1) for _ in range(count)])
    else:
        things = SimpleNamespace(**{f"a{i}": [i] for i in range(count)})
    kept = {"deep": {"inside": [0]}}
    found = [held.path for held in walk(sys._getframe())]
    assert "kept['deep']['inside']" in found, (things, kept)


def as_a_library(body: str, **given: Any) -> None:
    """Run some lines as an installed package does in whose command no frame is the user's."""
    source = f"import sys\ndef run({', '.join(given)}):\n    {body}\n"
    file = Path(sysconfig.get_path("purelib")) / "somebodys" / "loop.py"
    names: dict[str, Any] = {}
    exec(compile(source, str(file), "exec"), names)
    thread = Thread(target=names["run"], kwargs=given)
    thread.start()
    thread.join()


class Objective:
    def __init__(self):
        self.kept = [0]

    def loss(self):
        self.kept.append(0)


@pytest.mark.parametrize("handed", ["object", "method", "task"])
def test_what_a_librarys_loop_was_handed_is_found(handed):
    """Nothing else may lead to the loss function: under ``holdfast train``, for one."""
    kept, value = objective(handed)
    results: list[Any] = []
    as_a_library(
        "results.append(walk(sys._getframe()))", walk=walk, value=value, own=[0], results=results
    )
    found = {held.path: held for held in results[0]}
    path = "value.kept" if handed == "object" else "Objective.kept"
    assert found[path].value is kept and found[path].file == __file__
    assert "own" not in found, "what the library keeps for itself"


def objective(handed: str) -> tuple[list[int], Any]:
    one = Objective()
    model, loss = torch.nn.Linear(1, 1), cast("Any", one.loss)
    kinds = {"object": one, "method": loss, "task": Task(model=model, loss=loss, train=())}
    return one.kept, kinds[handed]


def test_lines_are_followed_where_no_function_of_the_users_runs_yet():
    one = Objective()
    watch = Watchpoint([Length(one.kept)])
    as_a_library("watch.start(sys._getframe()); loss(); watch.stop()", watch=watch, loss=one.loss)
    (change,) = watch.changes[0]
    assert (change.function, change.line) == ("loss", Objective.loss.__code__.co_firstlineno + 1)


SOURCE = """
def forward(self, x):
    self.h = self.cell(x, self.h)
    return self.h
def unrolled(self, xs):
    for x in xs:
        self.h = self.cell(x, self.h)  # within
    return self.h
for x in data:
    h = rnn(x, h)  # of the step
    loss = h.sum()
    loss.backward()
    for t in range(3):
        h = rnn(x[t], h)  # in it
"""


@pytest.mark.parametrize(
    ("text", "often", "once"),
    [
        ("return self.h", 1, True),
        ("return self.h", 12, False),
        ("# within", 1, False),
        ("# of the step", 1, True),
        ("# in it", 1, False),
    ],
)
def test_a_line_that_runs_once_in_each_step(tmp_path, text, often, once):
    path = tmp_path / "often.py"
    path.write_text(SOURCE)
    line = next(i for i, found in enumerate(SOURCE.splitlines(), 1) if text in found)
    held = references.Held("net.h", "h", "attribute", None, "h", torch.zeros(1), f"{path}:Net")
    found = growth_facts.of_line(held, [ValueChange(str(path), line, "forward", 2 * often)], 2)
    assert found.again is once and found.retains is False
    assert not growth_facts.of_line(held, []).again or text == "# of the step"


def test_what_is_stored_is_a_tensor_or_holds_some():
    for value, plain in ([torch.zeros(1)] * 4, True), ([(torch.zeros(1), 1)] * 4, False):
        for kept in (value, dict(enumerate(value))):
            held = references.Held("kept", "kept", "local", None, "kept", kept, "train.py:")
            readings = [value_sizes.ValueSize(n, (1, n)) for n in (2, 3, 4)]
            record = value_sizes._growth(held, readings, 0, [0, 1, 2]).record
            assert record.plain is plain and record.type == type(kept).__name__


def test_bytes_of_values():
    tensor = torch.zeros(1000)
    both = Weight().add([tensor, tensor[:10]])
    assert 4000 < both.tensors < 6000, "a view shares the memory"
    assert both.graphs == 0
    assert Weight().add({"loss": (tensor.requires_grad_() * 2).sum()}).graphs == 1
    assert Weight().add([list(range(1000, 2000))] * 2).others > 20_000


class Length:
    def __init__(self, value):
        self.value = value

    def token(self, frame):
        return len(self.value)


def grow(values):
    values.append(1)
    return values


def test_a_watchpoint_sees_the_line():
    values = []
    watch = Watchpoint([Length(values)])
    assert watch.start(sys._getframe())
    other = len(values)
    grow(values)
    values.append(other)
    watch.stop()
    assert sys.gettrace() is None
    first, second = watch.changes[0]
    start = grow.__code__.co_firstlineno
    assert (first.function, first.line) == ("grow", start + 1)
    assert second.line == test_a_watchpoint_sees_the_line.__code__.co_firstlineno + 6

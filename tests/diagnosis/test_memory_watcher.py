"""The memory watch on loops of this very file: what detectors say of what it records."""

from __future__ import annotations

import gc
import inspect
import json
import sys
import weakref
from collections import deque
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.detectors.judge import Judge
from holdfast.diagnosis.memory import growth, look_schedule
from holdfast.diagnosis.memory.watcher import MemoryWatch
from holdfast.records.base import Kind, event_from
from holdfast.types import Event, Finding, Severity

STEPS = 24

# A search ends after some milliseconds: of a clock that no other process makes go faster.
pytestmark = pytest.mark.usefixtures("clock")


class Recorded:
    """A training that keeps what is recorded of it."""

    def __init__(self) -> None:
        self.iteration = 0
        self.events: list[Event] = []
        self.models: list[nn.Module] = []

    def known_models(self) -> list[nn.Module]:
        return self.models

    def optimizers(self) -> list[Any]:
        return []

    def record(self, record: Kind) -> None:
        event = event_from(self.iteration + 1, record, rank=0)
        # As it is written down: plain values only.
        self.events.append(Event.from_dict(json.loads(json.dumps(event.to_dict()))))


class Loop:
    """A small training that calls the watch as the engine does."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.recorded = Recorded()
        self.watch = MemoryWatch(self.recorded)  # type: ignore[arg-type]
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        self.recorded.models.append(self.model)
        self.step = 0

    def loss(self) -> torch.Tensor:
        return self.model(torch.randn(8, 16)).square().mean()

    def train(self, loss: torch.Tensor, **options: Any) -> None:
        self.watch.backward(loss)
        loss.backward(**options)
        self.model.zero_grad()
        self.recorded.iteration = self.step
        self.watch.step_ended(SimpleNamespace(step=self.step, opt=0), sys._getframe())  # type: ignore
        self.step += 1

    def findings(self) -> list[Finding]:
        """What the detectors say about the events, row by row and all at once."""
        self.watch.close()
        rows = np.zeros(self.step, [("step", "<i8"), ("loss", "<f4")])
        rows["step"] = np.arange(self.step)
        whole, live = Judge(), Judge()
        whole.feed(rows, self.recorded.events)
        for row in rows:
            due = [e for e in self.recorded.events if e.step == row["step"]]
            live.feed(rows[row["step"] : row["step"] + 1], due)
        live.feed(None, [e for e in self.recorded.events if e.step >= self.step])
        whole.close()
        live.close()
        assert whole.errors == live.errors == []
        assert whole.findings == live.findings
        return whole.findings

    def found(self) -> tuple[str, str, str]:
        """Code, name and statement of the first finding."""
        findings = self.findings()
        assert findings, "nothing was found"
        first = min(findings, key=lambda finding: finding.step)
        path = first.evidence.get("variable", "")
        return first.code, path, self.statement(first)

    def statement(self, finding: Finding) -> str:
        lines = {(e.data["file"], e.data["line"]): e.data["code"] for e in self.recorded.events}
        return lines[finding.file, finding.line]

    def reported(self) -> list[tuple[str, str, str]]:
        """Code, variable and statement of all of them."""
        return [
            (f.code, f.evidence.get("variable", ""), self.statement(f)) for f in self.findings()
        ]


@pytest.fixture
def loop(monkeypatch):
    # Steps of a fraction of a millisecond: looks would come rarely, and rarer on a busy machine.
    monkeypatch.setattr(look_schedule, "_SHARE", 1.0)
    monkeypatch.setattr(look_schedule, "_SHARE_ALERT", 1.0)
    # An engine of another test may have begun to follow the lines.
    theirs = sys.gettrace()
    sys.settrace(None)
    yield Loop()
    assert sys.gettrace() is None
    sys.settrace(theirs)


class Meter:
    def __init__(self) -> None:
        self.total: Any = 0
        self.history: dict[str, list[Any]] = {"loss": [], "lr": []}


def test_a_sum_in_a_local_variable(loop):
    total = 0
    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        total += loss
    assert loop.found() == ("MEM002", "total", "total += loss")


@pytest.mark.slow
def test_a_list_in_a_dictionary_of_an_object(loop):
    meter = Meter()
    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        meter.history["lr"].append(1e-3)
        meter.history["loss"].append(loss)
    wanted = "meter.history['loss']", 'meter.history["loss"].append(loss)'
    assert loop.found() == ("MEM002", *wanted)


@pytest.mark.slow
def test_a_state_that_no_loss_uses(loop):
    reservoir = nn.GRUCell(4, 256)
    state = torch.zeros(128, 256)
    for _ in range(STEPS):
        state = reservoir(torch.randn(128, 4), state)
        loop.train(loop.loss())
    wanted = "state = reservoir(torch.randn(128, 4), state)"
    assert loop.found() == ("MEM002", "state", wanted)


@pytest.mark.slow
def test_a_sum_that_a_function_makes_is_no_state(loop):
    def add(total: Any, value: torch.Tensor) -> Any:
        return total + value

    total: Any = torch.zeros(())
    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        total = add(total, loss)
    assert loop.found() == ("MEM002", "total", "total = add(total, loss)")


@pytest.mark.slow
def test_a_class_attribute(loop):
    class Log:
        entries: ClassVar[list[Any]] = []

    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        Log.entries.append(loss)
    assert loop.found() == ("MEM002", "Log.entries", "Log.entries.append(loss)")


@pytest.mark.slow
def test_a_closure(loop):
    def make():
        seen = []

        def note(value):
            seen.append(value)

        return note

    note = make()
    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        note(loss)
    assert loop.found() == ("MEM002", "seen", "seen.append(value)")


@pytest.mark.slow
def test_a_running_average_of_an_object(loop):
    meter = Meter()
    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        meter.total = 0.9 * meter.total + loss
    assert loop.found() == ("MEM002", "meter.total", "meter.total = 0.9 * meter.total + loss")


def test_a_state_that_is_carried_on(loop):
    state = torch.zeros(())
    for _ in range(STEPS):
        state = 0.5 * state + loop.loss()
        loop.train(state * 2, retain_graph=True)
    assert loop.found() == ("MEM003", "state", "state = 0.5 * state + loop.loss()")


SECOND = RuntimeError("Trying to backward through the graph a second time (or directly access")


def test_a_state_that_ends_the_second_step(loop):
    state = 0.5 * loop.loss()
    loop.train(state * 2)
    state = 0.5 * state + loop.loss()
    with pytest.raises(RuntimeError, match="a second time") as died:
        loop.train(state * 2)
    assert [record.name for record in loop.watch.last_words(died.value)] == ["state"]


def test_what_the_other_optimizer_uses_is_not_carried_to_the_next_step(loop):
    """Generator and discriminator: the second loss leads to what was made before a step."""
    loop.recorded.optimizers = lambda: [None, None]
    sample = loop.loss()
    loop.train(loop.loss())
    loop.watch.backward(sample * 2)
    assert loop.watch.last_words(SECOND) == []


def test_a_state_that_was_stepped_with_has_not_ended_the_run(loop):
    sample = loop.loss()
    loop.train(loop.loss())
    loop.train(sample * 2)
    for _ in range(3):
        loop.train(loop.loss())
    loop.watch.backward(loop.loss())
    assert loop.watch.last_words(SECOND) == []


class StatefulLoader:
    """Remembers its place, and carries the state of a recurrent net for the loop."""

    def __init__(self) -> None:
        self.position, self.state = 0, None

    def __iter__(self) -> StatefulLoader:
        return self

    def __next__(self) -> Any:
        self.position += 1
        if self.position > STEPS:
            raise StopIteration
        return torch.randn(4, 16, 8), self.state


def test_a_recurrent_state_that_a_stateful_loader_carries(loop):
    """Hundreds of nodes in each step: far must mean steps, not nodes."""
    rnn = nn.GRU(8, 8, batch_first=True)
    loader = StatefulLoader()
    for x, state in loader:
        output, loader.state = rnn(x, state)
        loop.train(output.square().mean() + loop.loss(), retain_graph=True)
    line = "output, loader.state = rnn(x, state)"
    assert loop.found() == ("MEM003", "loader.state", line)


def test_tensor_leak(loop):
    batches = deque()
    for _ in range(STEPS):
        loop.train(loop.loss())
        batches.append(torch.zeros(1 << 16))
    assert loop.found() == ("MEM001", "batches", "batches.append(torch.zeros(1 << 16))")
    assert loop.recorded.events[0].data["bytes"] == pytest.approx(1 << 18, rel=0.1)


@pytest.mark.slow
def test_what_goes_on_growing_is_measured_again_and_traced_once(loop, monkeypatch):
    started = []
    original = growth.LineWatch.start

    def start(self, groups, frame):
        started.append(len(groups))
        original(self, groups, frame)

    monkeypatch.setattr(growth.LineWatch, "start", start)
    epoch: list[torch.Tensor] = []
    for i in range(160):
        if i == 80:
            epoch.clear()
        loop.train(loop.loss())
        epoch.append(torch.zeros(1 << 14))
    assert loop.findings() == [], "it is emptied, though rarely"
    steps = [e.data["steps"] for e in loop.recorded.events if e.data["path"] == "epoch"]
    assert started == [1] and 12 < len(steps) < 24
    assert steps == sorted(steps), "each time later than before"


@pytest.mark.slow
def test_a_tensor_that_is_joined_to_itself(loop):
    bank = torch.zeros(0)
    for _ in range(STEPS):
        loop.train(loop.loss())
        bank = torch.cat([bank, torch.zeros(1 << 15)])
    assert loop.found()[:2] == ("MEM001", "bank")


def test_python_objects_pile_up(loop):
    log = {}
    for i in range(STEPS):
        loop.train(loop.loss())
        log[i] = list(range(100_000, 104_000))
    assert loop.found()[:2] == ("MEM005", "log")


def test_evaluation_with_a_graph(loop):
    for _ in range(3):
        loop.train(loop.loss())
    for _ in range(2):
        loop.watch.evaluation.begins(sys._getframe())
        output = loop.model(torch.randn(8, 16))
        del output
        loop.watch.evaluation.ends()
        loop.train(loop.loss())
    assert loop.found()[::2] == ("MEM004", "output = loop.model(torch.randn(8, 16))")
    assert loop.findings()[0].severity is Severity.WARNING


def test_lines_of_an_evaluation_without_gradients_are_followed_up_to_its_first_batch(loop):
    loop.watch.evaluation.begins(sys._getframe())
    watch = loop.watch.evaluation._watch
    loop.watch.evaluation.fetched()
    before = watch.active
    with torch.no_grad():
        loop.watch.evaluation.fetched()
    after = watch.active
    loop.watch.evaluation.ends()
    assert before and not after


def test_an_attack_in_eval_mode_is_none(loop):
    for _ in range(4):
        loop.watch.evaluation.begins(sys._getframe())
        x = torch.randn(8, 16, requires_grad=True)
        loop.watch.evaluation.differentiates()
        torch.autograd.grad(loop.model(x).sum(), x)
        loop.watch.evaluation.ends()
        loop.train(loop.loss())
    assert loop.findings() == []


def test_what_is_healthy(loop):
    numbers, recent, average = [], deque(maxlen=4), 0.0
    best = None
    epoch: list[torch.Tensor] = []
    for i in range(3 * STEPS):
        if i % 6 == 0:
            epoch = []
        loss = loop.loss()
        loop.train(loss)
        numbers.append(loss.item())
        recent.append(torch.zeros(1 << 16))
        average = 0.9 * average + 0.1 * loss.detach()
        epoch.append(torch.zeros(1 << 14))
        best = loss if best is None or loss < best else best
    assert loop.findings() == [], len(numbers) + len(recent) + len(epoch)


def test_a_graph_that_was_made_once_is_no_state_that_is_carried_on(loop):
    """As the coordinates of a physics-informed network: one node, older with every step."""
    points = torch.ones(8, 16, dtype=torch.float64, requires_grad=True).float()
    for _ in range(3 * STEPS):
        value = loop.model(points)
        (slope,) = torch.autograd.grad(value.sum(), points, create_graph=True)
        loop.train(slope.pow(2).mean() + value.mean(), retain_graph=True)
    assert loop.findings() == []


def test_one_made_once_beside_a_window_of_some_steps_is_none(loop):
    base = (torch.ones(16, requires_grad=True) * 2).sum()
    state = torch.zeros(())
    for i in range(3 * STEPS):
        state = 0.5 * state + loop.loss()
        loop.train(state * base, retain_graph=True)
        if i % 4 == 3:
            state = state.detach()
    assert loop.findings() == []


def test_a_state_that_is_cut_is_healthy(loop):
    state = torch.zeros(())
    for i in range(3 * STEPS):
        state = 0.5 * state + loop.loss()
        loop.train(state * 2, retain_graph=True)
        if i % 4 == 3:
            state = state.detach()
    assert loop.findings() == []


def test_nothing_is_kept_alive(loop):
    kept, loss = [], loop.loss()
    for _ in range(STEPS):
        loss = loop.loss()
        loop.train(loss)
        kept.append(loss)
    references = [weakref.ref(tensor) for tensor in kept]
    kept.clear()
    del loss
    gc.collect()
    assert [r() for r in references if r() is not None] == []


@pytest.mark.slow
def test_somebody_elses_trace_is_left_alone(loop):
    """The line then comes from the source."""
    seen = []

    def theirs(frame, event, arg):
        return None

    losses = []
    sys.settrace(theirs)
    try:
        for _ in range(2 * STEPS):
            loss = loop.loss()
            loop.train(loss)
            losses.append(loss)
        seen.append(sys.gettrace())
    finally:
        sys.settrace(None)
    assert seen == [theirs]
    assert loop.found() == ("MEM002", "losses", "losses.append(loss)")
    assert loop.recorded.events[0].data["seen"] == "source"
    assert inspect.currentframe() is not None


def judged(model: nn.Module) -> float:
    outs = []
    for _ in range(12):
        outs.append(model(torch.randn(8, 16)))  # judges
    return torch.cat(outs).mean().item()


def test_an_evaluation_that_calls_neither_eval_nor_a_loader(loop):
    for step in range(1, 41):
        loop.train(loop.loss())
        if step % 10 == 0:
            judged(loop.model)
    assert loop.found()[::2] == ("MEM004", "outs.append(model(torch.randn(8, 16)))  # judges")


def test_a_mean_over_kept_losses_is_no_evaluation(loop):
    losses: list[torch.Tensor] = []
    for step in range(1, 121):
        loss = loop.loss()
        loop.train(loss)
        losses.append(loss)
        if step % 10 == 0:
            print(f"mean loss {sum(loss * 2 for loss in losses):.3f}")
    assert {f.code for f in loop.findings()} == {"MEM002"}


def test_the_same_without_graphs(loop):
    for step in range(1, 41):
        loop.train(loop.loss())
        if step % 10 == 0:
            with torch.no_grad():
                judged(loop.model)
    assert loop.findings() == []


def test_graphs_that_are_differentiated_are_wanted(loop):
    for step in range(1, 61):
        if step % 20 == 0:
            x = torch.randn(8, 16, requires_grad=True)
            for _ in range(12):
                loop.watch.evaluation.differentiates()
                torch.autograd.grad(loop.model(x).sum(), x)
        loop.train(loop.loss())
    assert loop.findings() == []


@pytest.mark.slow
def test_what_an_evaluation_built_and_somebody_keeps(loop):
    scores: list[torch.Tensor] = []
    for step in range(160):
        loop.train(loop.loss())
        if step % 4 == 3:
            loop.watch.evaluation.begins(sys._getframe())
            score = loop.model(torch.randn(8, 16)).mean()
            loop.watch.evaluation.ends()
            scores.append(score + 1)
    reported = {f.code: f.evidence.get("consequence") for f in loop.findings()}
    assert reported == {"MEM004": None, "MEM002": "MEM004"}

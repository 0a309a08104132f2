"""Steps that become slower while no line does: what the device says about it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from holdfast.exams._profiles import Line, Profile
from holdfast.exams.loader_times import nesting
from holdfast.guard import slow_causes
from holdfast.guard.slow_causes import Reference, registered_on, slow_down, state
from holdfast.guard.step_times import StepTimes
from holdfast.guard.time_notes import TimeNotes


@pytest.fixture
def slower() -> StepTimes:
    times = StepTimes()
    for step in range(51):
        times.add(step, 0.002 if step < 27 else 0.005, 0.002, 0.0)
    return times


def at(retries: int = 0, clock: float = 0.0) -> Reference:
    return Reference(Profile(lines=[]), 4, 0, retries=retries, clock=clock)


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (at(1), at(9), "retries"),
        (at(1, 1980), at(9, 900), "retries"),
        (at(1, 1980), at(2, 900), "clocks"),
        (at(1, 1980), at(2, 1900), ""),
        (at(0, 1980), at(0, 0.0), ""),
        (at(0, 0.0), at(0, 1980), ""),
        (at(), at(), ""),
    ],
)
def test_the_device_is_the_cause(
    slower: StepTimes, before: Reference, now: Reference, what: str
) -> None:
    found = slow_down(before, now, None, slower)
    assert (found.data["what"] if found else "") == what
    if found:
        assert (found.data["before_ms"], found.data["now_ms"]) == (2.0, 5.0)
        assert found.share == pytest.approx(0.6)


class Told:
    """A training that keeps what is recorded of it."""

    iteration = 0

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []

    def record(self, kind: str, data: dict[str, str]) -> None:
        self.told.append((kind, data["what"]))


SCRIPT = """
def constrain(net):
    parametrize.register_parametrization(net, "weight", NonNegative())

def adapt(net, steps):
    for _ in range(steps):
        loss = net(x).mean()
    for x in history:
        loss = net(x).mean()
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.strip())
    return str(path)


def lines(script: str, number: int, mark: str, seconds: float, hits: float) -> list[Line]:
    path = ((script, number),)
    own = Line(script, number, "adapt", mark, seconds, hits, path)
    rest = Line(script, 1, "backward", "backward", 3 * seconds, 0.0, path, direct=False)
    return [own, rest] if mark else [own]


def test_what_is_registered_again_and_again(slower: StepTimes, script: str) -> None:
    before = Reference(Profile(2e-3, lines=lines(script, 1, "model", 2e-4, 3)), 4, 20, 12)
    profile = Profile(5e-3, lines=lines(script, 1, "model", 8e-4, 12))
    found = slow_down(before, Reference(profile, 4, 50, 21), None, slower)
    assert found is not None
    assert (found.data["what"], found.data["line"]) == ("hooks", 2)
    # A model that has grown has new parameters, and one that has not has nothing new.
    for now in (Reference(profile, 6, 50, 21), Reference(profile, 4, 50, 12)):
        other = slow_down(before, now, None, slower)
        assert other is None or other.data["what"] != "hooks"


@pytest.mark.parametrize(("number", "passes", "what"), [(6, 2, ""), (6, 3, "work"), (8, 2, "work")])
def test_some_more_passes_are_meant_where_a_loop_counts(
    slower: StepTimes, script: str, number: int, passes: int, what: str
) -> None:
    before = Reference(Profile(2e-3, 16.0, 1.0, lines(script, number, "", 5e-4, 1)), 4, 20)
    more = lines(script, number, "", 35e-4, passes)
    now = Reference(Profile(5e-3, 16.0 * passes, 1.0 * passes, more), 4, 60)
    found = slow_down(before, now, None, slower)
    assert (found.data["what"] if found else "") == what


@pytest.mark.parametrize(
    ("runs_out", "what"), [(1.0, "retries"), (0.25, "retries"), (0.1, "work"), (0.0, "work")]
)
def test_a_line_is_slow_because_the_allocator_runs_out(
    slower: StepTimes, script: str, runs_out: float, what: str
) -> None:
    before = Reference(Profile(2e-3, 16.0, 1.0, lines(script, 8, "", 5e-4, 1)), 4, 20)
    profile = Profile(5e-3, 16.0, 1.0, lines(script, 8, "", 35e-4, 1))
    now = Reference(profile, 4, 20, retries=3, runs_out=runs_out)
    found = slow_down(before, now, None, slower)
    assert found is not None
    assert (found.data["what"], found.data["line"]) == (what, 8)
    # What can be counted has grown by itself, and memory may be short because of that.
    more = Profile(5e-3, 16.0, 1.0, lines(script, 8, "", 6e-4, 60_000))
    found = slow_down(before, Reference(more, 4, 20, runs_out=runs_out), None, slower)
    assert found is not None and found.data["what"] == "work"


def test_a_dataset_that_is_wrapped_again_and_again(slower: StepTimes, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("for batch in loader:\n    train(batch)\n    data = Subset(data, chosen)\n")

    def fetches(seconds: float) -> list[Line]:
        return [Line(str(path), 1, "", "fetch", seconds, 1, ((str(path), 1),), direct=False)]

    before = Reference(Profile(2e-3, lines=fetches(5e-4)), 4, 20, nested=(1, "Subset"))
    for depth, what in ((40, "nested"), (2, "")):
        now = Reference(Profile(5e-3, lines=fetches(35e-4)), 4, 20, nested=(depth, "Subset"))
        found = slow_down(before, now, None, slower)
        assert (found.data["what"] if found else "") == what
        if found is not None:
            assert found.data["line"] == 3


def test_how_deep_datasets_are_nested() -> None:
    data: Dataset[int] = ConcatDataset([TensorDataset(torch.ones(4)), TensorDataset(torch.ones(4))])
    for _ in range(3):
        data = Subset(data, [0, 1])
    assert nesting(iter(DataLoader(data))) == (5, "Subset")
    assert nesting(object())[0] == 0


def test_what_the_device_does_is_told_without_a_line(slower: StepTimes) -> None:
    found = slow_down(at(1), at(9), None, slower)
    journal = Told()
    notes = TimeNotes(journal)  # type: ignore[arg-type]
    assert found is not None and notes.note(found)
    notes.settle(1.0)
    assert journal.told == [("slow_down", "retries")]


def test_modules_and_hooks_are_counted() -> None:
    net = nn.Linear(3, 3)
    counts = [registered_on([net])]
    for _ in range(2):
        parametrize.register_parametrization(net, "weight", nn.Identity())
        counts.append(registered_on([net]))
    net.register_forward_hook(lambda *_: None)
    counts.append(registered_on([net]))
    for _ in range(2):
        next(net.parameters()).register_hook(lambda grad: grad)
        counts.append(registered_on([net]))
    assert counts == sorted(set(counts))


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks a device")
def test_without_a_device_there_is_nothing_to_say() -> None:
    now = state(Profile(lines=[]), 4, 0, [])
    assert (now.retries, now.clock, now.runs_out) == (0, 0.0, 0.0)


def test_a_clock_that_nobody_can_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate() -> int:
        raise ModuleNotFoundError("pynvml")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(slow_causes, "counters", lambda: {"num_alloc_retries": 3})
    monkeypatch.setattr(torch.cuda, "clock_rate", rate)
    now = state(Profile(lines=[]), 4, 0, [], since=(1, 4))
    assert (now.retries, now.clock, now.runs_out) == (3, 0.0, 0.5)

"""The parts of the memory exams: graphs, source, lines, sizes."""

from __future__ import annotations

import functools
import sys
import textwrap
from types import SimpleNamespace

import pytest
import torch

from holdfast.diagnosis.memory import holders, sample_growth
from holdfast.diagnosis.memory.graphs import (
    now,
    number_of,
    reach,
    touches,
)
from holdfast.diagnosis.memory.holders import walk
from holdfast.diagnosis.memory.sizes import Weight
from holdfast.diagnosis.source.growers import (
    draws_more,
    habits,
    in_loop,
    refers_to_itself,
)
from holdfast.diagnosis.watchpoint import Watchpoint

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
    assert fresh.entries == [] and fresh.oldest >= border and fresh.whole


def test_whether_a_graph_has_nodes_of_a_stretch():
    weight = torch.ones(3, requires_grad=True)
    low = now()
    inside = weight * 2
    high = now()
    assert touches((inside + 1).sum().grad_fn, low, high)
    assert not touches((weight + 1).sum().grad_fn, low, high)
    assert not touches(None, low, high)


@pytest.mark.parametrize(
    ("source", "grows", "shrinks", "tested"),
    [
        ("for i in y:\n    x.append(i)", [2], False, False),
        ("for i in y:\n    x = x + [i]", [2], False, False),
        ("for i in y:\n    x[i] = 1", [2], False, False),
        ("for i in y:\n    x.append(i)\n    x.pop(0)", [2], True, False),
        ("for e in z:\n    x = []\n    for i in y:\n        x.append(i)", [4], True, False),
        ("def f():\n    x = []\n    for i in y:\n        x.append(i)", [4], False, False),
        ("for i in y:\n    if i not in x:\n        x[i] = 1", [3], False, True),
        ("for i in y:\n    if len(x) < 9:\n        x.append(i)", [3], False, False),
        ("for i in y:\n    x = x[-9:]", [2], True, False),
        ("def f():\n    y = [i for i in z if i not in x]\n    x[1] = y", [3], False, True),
        ("x.append(1)", [], False, False),
    ],
)
def test_what_the_source_says(tmp_path, source, grows, shrinks, tested):
    file = tmp_path / "a.py"
    file.write_text(source)
    found = habits(str(file), "x")
    assert (found.grows, found.shrinks, found.tested) == (grows, shrinks, tested)


def test_a_list_that_backward_uses(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("for i in y:\n    x.append(i)\nloss = sum(x)\nloss.backward()\n")
    assert habits(str(file), "x").consumed
    assert not habits(str(file), "y_other").consumed


def test_lines_in_loops_and_statements_about_themselves(tmp_path):
    file = tmp_path / "a.py"
    file.write_text("a = 1\nfor i in b:\n    a = a + i\n    c = i\n")
    assert [in_loop(str(file), line) for line in (1, 3)] == [False, True]
    assert [refers_to_itself(str(file), line, "a") for line in (1, 3, 4)] == [False, True, False]


@pytest.mark.parametrize("count", [200, 5000])
@pytest.mark.parametrize("kind", ["modules", "attributes"])
def test_many_things_hide_nothing_beside_them(monkeypatch, kind, count):
    monkeypatch.setattr(holders, "_OBJECTS", 1000)  # what a slow machine has time for
    if kind == "modules":
        things: object = torch.nn.ModuleList([torch.nn.Linear(1, 1) for _ in range(count)])
    else:
        things = SimpleNamespace(**{f"a{i}": [i] for i in range(count)})
    kept = {"deep": {"inside": [0]}}
    found = [held.path for held in walk(sys._getframe())]
    assert "kept['deep']['inside']" in found, (things, kept)


def test_bytes_of_values():
    tensor = torch.zeros(1000)
    both = Weight().add([tensor, tensor[:10]])
    assert 4000 < both.tensors < 6000, "a view shares the memory"
    assert both.graphs == 0 and both.count == 2
    assert Weight().add({"loss": (tensor.requires_grad_() * 2).sum()}).graphs == 1
    assert Weight().add([list(range(1000, 2000))] * 2).others > 20_000


def test_an_error_weighs_what_its_frames_hold():
    def fail() -> None:
        batch = torch.zeros(1 << 16)
        raise ValueError(batch.shape)

    with pytest.raises(ValueError) as caught:
        fail()
    assert Weight().add(caught.value).tensors > 1 << 18


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


class Hoarder(torch.utils.data.Dataset):
    def __init__(self):
        self.seen: list[object] = [0]

    def __len__(self):
        return 9

    def __getitem__(self, index):
        self.seen.append(torch.rand(3))
        return index


def test_a_dataset_that_grows():
    dataset = Hoarder()
    before = torch.random.get_rng_state()
    found = sample_growth.examine(dataset, sys._getframe(), fetch=True)
    assert (found["path"], found["code"]) == ("self.seen", "self.seen.append(torch.rand(3))")
    assert dataset.seen == [0], "what the exam has put in is taken out"
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_dataset_of_many_objects(tmp_path, monkeypatch):
    source = """
        import torch
        class Files(torch.utils.data.Dataset):
            def __init__(self):
                self.files = [f"{i}.png" for i in range(6000)]
            def __len__(self):
                return len(self.files)
            def __getitem__(self, index):
                return self.files[index]
        """
    (tmp_path / "files_of_many.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    import files_of_many  # type: ignore[import-not-found]

    found = sample_growth.examine(files_of_many.Files(), sys._getframe(), fetch=True)
    assert found["copied"] and (found["path"], found["line"]) == ("self.files", 5)


@pytest.mark.parametrize(
    ("source", "capped"),
    [
        ("for i in y:\n    if len(x) < 9:\n        x.append(i)", True),
        ("for i in y:\n    if 9 > len(x):\n        x.append(i)", True),
        ("for i in y:\n    if len(x) >= 9:\n        z()\n    else:\n        x.append(i)", True),
        ("for i in y:\n    x.append(i)\n    if len(x) > 9:\n        print(x[-9:])", False),
        ("for i in y:\n    if len(x) > 9:\n        x.append(i)", False),
        ("for i in y:\n    if len(x) >= 9:\n        continue\n    x.append(i)", True),
        ("for i in y:\n    if len(x) < 9:\n        x[i] = 1", True),
        ("for i in y:\n    if used + i <= 9:\n        x[i] = 1\n        used += i", True),
        ("for i in y:\n    if used + i <= 9:\n        x[i] = 1\n        other += i", False),
        ("for i in y:\n    if used == 9:\n        x[i] = 1\n        used += i", False),
        (
            "def f():\n    x.append(1)\n    if len(x) < 2:\n        return 0\n    return x[-1]",
            False,
        ),
    ],
)
def test_what_grows_only_while_it_is_short(tmp_path, source, capped):
    file = tmp_path / "a.py"
    file.write_text(source)
    assert habits(str(file), "x").capped == capped


class Cached(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 32

    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033 (as people write it)
    def features(self, index: int, start: float) -> list[int]:
        return [index]

    def __getitem__(self, index: int) -> list[int]:
        return self.features(index, float(torch.rand(())))


def test_a_cached_method_of_a_dataset():
    Cached.features.cache_clear()
    told = sample_growth.examine(Cached(), sys._getframe(), fetch=True)
    assert told["name"] == "features" and told["line"] == _line_of("@functools.lru_cache")


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, keeps: bool) -> None:
        self.keeps = keeps

    def __iter__(self):
        buffer = []
        for item in range(10_000):
            buffer.append(item)  # grows
            if len(buffer) >= 8:
                yield buffer[0] if self.keeps else buffer.pop(0)


def test_a_stream_that_keeps_what_it_gives():
    told = sample_growth.examine(Stream(keeps=True), sys._getframe(), fetch=True)
    assert told["name"] == "buffer" and told["line"] == _line_of("# grows")
    told = sample_growth.examine(Stream(keeps=False), sys._getframe(), fetch=True)
    assert told["path"] == ""


def test_nothing_is_fetched_unasked():
    class Touchy(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            raise AssertionError("fetched")

    told = sample_growth.examine(Touchy(), sys._getframe(), fetch=False)
    assert told["looked"] is False and told["copied"]


def _line_of(text: str) -> int:
    with open(__file__) as source:
        return next(n for n, line in enumerate(source, 1) if text in line)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("def frame():\n    ax.plot(x, y)\n    ax.set_xlim(0, 1)\n    fig.canvas.draw()", 2),
        ("def frame():\n    ax.cla()\n    ax.plot(x, y)\n    fig.canvas.draw()", 0),
        ("def other():\n    ax.plot(x, y)\ndef frame():\n    pass\n    fig.savefig(path)", 0),
        ("def frame():\n    ax.plot(x, y)\n    ax.set_xlim(0, 1)\n    model(x)", 0),
    ],
)
def test_what_is_added_to_a_picture(tmp_path, source, line):
    file = tmp_path / "a.py"
    file.write_text(source)
    assert draws_more(str(file), len(source.splitlines())) == line


class Plans:
    def __init__(self) -> None:
        self.plans: dict[float, list[int]] = {}

    def plan(self, factor: float) -> list[int]:
        if factor not in self.plans:
            self.plans[factor] = [1]  # plans
        return self.plans[factor]


class Planned(torch.utils.data.Dataset):
    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.augment = Plans()

    def __getitem__(self, index: int) -> list[int]:
        return self.augment.plan(float(torch.rand(())))


def test_what_the_source_of_a_dataset_says(tmp_path, monkeypatch):
    names: list[str] = []
    names.append("a")  # a variable of another function has the same name
    told = sample_growth.examine(Planned(names), sys._getframe(), fetch=False)
    assert (told["path"], told["line"]) == ("self.augment.plans", _line_of("# plans"))
    assert told["tested"], "it is asked before it grows, as caches are"

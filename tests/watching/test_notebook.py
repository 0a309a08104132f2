"""A watched loop in the cells of a notebook: its end is told with the cell, by its number."""

from __future__ import annotations

import linecache
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.run import Run
from holdfast.watching import left_loop

SETUP = """
import torch, holdfast
torch.manual_seed(0)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
"""
WATCH = "watch = holdfast.watch(net, opt)"
LOOP = """for step in range(3):
    watch.backward(net(torch.randn(8, {features})).square().mean())
    watch.step()
"""


class Notebook:
    """What we use of IPython in a kernel, for an environment without it."""

    kernel = object()

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.events = self.compile = self
        self._called: list[Any] = []
        self._count = 0

    def register(self, event: str, call: Any) -> None:
        assert event == "post_run_cell"
        self._called.append(call)

    def unregister(self, event: str, call: Any) -> None:
        self._called.remove(call)

    def push(self, names: dict[str, Any]) -> None:
        self.user_ns |= names

    def format_code_name(self, file: str) -> tuple[str, str] | None:
        number = file.removeprefix("/tmp/ipykernel_7/").removesuffix(".py")
        return ("Cell", f"In[{number}]") if number.isdecimal() else None

    def run(self, code: str) -> BaseException | None:
        """Run a cell; returns the exception that it ended with, which is shown as IPython does."""
        self._count += 1
        file = f"/tmp/ipykernel_7/{self._count}.py"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        error = None
        try:
            exec(compile(code, file, "exec"), self.user_ns)
        except BaseException as raised:
            error = sys.last_value = raised
        for call in list(self._called):
            call(types.SimpleNamespace(error_in_exec=error))
        return error


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Notebook:
    made = Notebook()
    module = types.ModuleType("IPython")
    monkeypatch.setattr(module, "get_ipython", lambda: made, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    monkeypatch.setattr(left_loop, "_open", [])
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/me/digits.ipynb")
    monkeypatch.chdir(tmp_path)
    made.run(SETUP)
    return made


def last_run() -> Run:
    return Run.latest("runs")


@pytest.mark.parametrize(("good", "step"), [(True, 3), (False, 0)], ids=["later", "first step"])
def test_a_loop_that_raises_is_reported_with_its_cell(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], good: bool, step: int
) -> None:
    notebook.run(WATCH)
    assert not good or notebook.run(LOOP.format(features=4)) is None
    assert isinstance(notebook.run(LOOP.format(features=5)), RuntimeError)
    reported = capsys.readouterr()
    at = f"cell {4 if good else 3}, line 2"
    assert reported.err == "" and "holdfast: crashed" in reported.out and at in reported.out
    watch = notebook.user_ns["watch"]
    (finding,) = watch.findings
    assert (finding.code, finding.step, finding.line) == ("RUN001", step, 2)
    assert at in finding.message and "cause: net (Linear) expects 4 features" in watch.report()
    assert "Crashed" in watch._repr_html_() and at in watch._repr_html_()
    assert last_run().path.name.endswith("-digits")
    assert last_run().meta["script"] == "digits.ipynb" and at[:6] in _traceback(last_run())


def _traceback(run: Run) -> str:
    return run.traceback_path("r0").read_text()


@pytest.mark.parametrize("cell", ["oops", "raise KeyboardInterrupt", "1 / 0"])
def test_what_else_happens_in_a_notebook_ends_no_loop(notebook: Notebook, cell: str) -> None:
    notebook.run(WATCH)
    notebook.run(LOOP.format(features=4))
    assert notebook.run(cell) is not None
    watch = notebook.user_ns["watch"]
    assert notebook.run(LOOP.format(features=4)) is None and watch.findings == []
    watch.close()
    assert watch.run.meta["exit_code"] == 0


def test_an_interrupted_loop_goes_on_in_the_next_cell(notebook: Notebook) -> None:
    notebook.run(WATCH)
    notebook.run(LOOP.format(features=4) + "    raise KeyboardInterrupt\n")
    assert notebook.run(LOOP.format(features=4)) is None
    watch = notebook.user_ns["watch"]
    watch.close()
    assert "finished after 4 steps" in watch.report() and watch.findings == []


def test_an_interrupted_loop_that_nobody_goes_on_with(notebook: Notebook) -> None:
    notebook.run(WATCH)
    notebook.run(LOOP.format(features=4) + "    raise KeyboardInterrupt\n")
    notebook.user_ns["watch"].close()
    assert "interrupted from the keyboard" in notebook.user_ns["watch"].report()


@pytest.mark.parametrize("caught", [False, True])
def test_a_with_block_is_reported_once_the_cell_is_over(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], caught: bool
) -> None:
    block = "with holdfast.watch(net, opt) as watch:\n" + "".join(
        f"    {line}\n" for line in [*LOOP.format(features=4).splitlines(), "    {}['lr']"]
    )
    if caught:
        block = "try:\n" + "".join(f"    {line}\n" for line in block.splitlines())
        block += "except KeyError:\n    pass\n"
    assert (notebook.run(block) is None) is caught
    reported = capsys.readouterr().out
    assert ("which the script caught" in reported) is caught
    assert reported.count("holdfast: crashed") == (not caught)
    assert len(notebook.user_ns["watch"].findings) == (not caught)


def test_the_extension_says_how_a_loop_is_guarded(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    del notebook.user_ns["holdfast"]
    holdfast.load_ipython_extension(notebook)
    assert "holdfast.watch(model, optimizer)" in capsys.readouterr().out
    assert notebook.user_ns["holdfast"] is holdfast

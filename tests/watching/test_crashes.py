"""A watched loop that an exception leaves: a crash once it has ended the script, not before."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import HoldfastError
from holdfast.report import replay
from holdfast.report.ending import ending_of
from holdfast.run import LaneReader, Run
from holdfast.types import Finding
from holdfast.watching import left_loop


@pytest.fixture(autouse=True)
def nothing_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "last_value", raising=False)
    monkeypatch.setattr(left_loop, "_open", [])


def loop(folder: Path, error: BaseException | None, steps: int = 3, **given) -> holdfast.Watch:
    """A loop in a with block that ends with an exception, which goes on as it is."""
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = holdfast.watch(net, optimizer, run_dir=folder, say=lambda line: None, **given)
    with watch:
        for number in range(steps + 1):
            loss = net(torch.randn(8, 4)).square().mean()
            if number == steps and error is not None:
                labels = torch.zeros(3)  # noqa: F841, a value of the failing frame
                raise error
            watch.backward(loss)
            watch.step()
    return watch


def fails(folder: Path, error: BaseException, **given) -> None:
    with pytest.raises(type(error)) as caught:
        loop(folder, error, **given)
    assert caught.value is error


def shown(error: BaseException) -> None:
    """Python prints the exception and the process ends."""
    sys.last_value = error
    left_loop.settle_all()


def found(folder: Path) -> list[Finding]:
    run = Run.open(folder)
    return [f for lane in run.lanes() for f in LaneReader(run, lane).findings()]


def test_an_exception_that_ends_the_script_is_a_finding(tmp_path: Path) -> None:
    error = ValueError("its own")
    fails(tmp_path / "run", error)
    run = Run.open(tmp_path / "run")
    assert found(run.path) == [] and "its own" not in str(replay(run).findings)
    shown(error)
    (finding,) = found(run.path)
    assert (finding.code, finding.step) == ("RUN001", 3)
    assert finding.message.startswith("step 3: ValueError: its own at test_crashes.py:")
    assert any(v["name"] == "labels" for v in finding.evidence["variables"])
    text = run.traceback_path("r0").read_text()
    assert "in fails" in text and "ValueError: its own" in text, "the whole way out"
    seen = replay(Run.open(run.path))
    assert seen.ending.line.startswith("crashed with ValueError: its own at ") and seen.sick
    assert [f.code for f in seen.findings] == ["RUN001"], "the same from the record"
    assert "ValueError: its own" in run.page_path.read_text()
    assert (run.path / "checkpoints").is_dir()


def test_nothing_has_crashed_where_the_script_catches_it(tmp_path: Path) -> None:
    fails(tmp_path / "run", ValueError("its own"))
    shown(KeyError("another one, later"))
    run = Run.open(tmp_path / "run")
    assert found(run.path) == [] and not run.traceback_path("r0").exists()
    ending = replay(run).ending
    assert (ending.word, ending.died) == ("interrupted", False)
    assert ending.line.startswith("left early with ValueError: its own at ")
    assert ending.line.endswith("which the script caught")
    assert (run.path / "checkpoints").is_dir(), "the weights are kept all the same"


def test_one_that_was_turned_into_another(tmp_path: Path) -> None:
    error = ValueError("its own")
    fails(tmp_path / "run", error)
    try:
        raise RuntimeError("training failed") from error
    except RuntimeError as other:
        shown(other)
    (finding,) = found(tmp_path / "run")
    assert finding.message.startswith("step 3: ValueError: its own at test_crashes.py")
    assert "RuntimeError: training failed" in finding.evidence["traceback"]


def test_before_the_first_step(tmp_path: Path) -> None:
    error = KeyError("x")
    fails(tmp_path / "run", error, steps=0)
    assert not (tmp_path / "run").exists(), "a loop that did nothing leaves nothing"
    shown(error)
    (finding,) = found(tmp_path / "run")
    assert (finding.code, finding.step) == ("RUN001", 0)
    assert replay(Run.open(tmp_path / "run")).ending.word == "failed"


def test_without_a_with_block(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    said: list[str] = []
    watch = holdfast.watch(net, optimizer, run_dir=tmp_path / "run", say=said.append)
    try:
        for _ in range(3):
            watch.run_step(lambda x: net(x).square().mean(), torch.randn(8, 4))
        raise ValueError("its own")
    except ValueError as error:
        sys.last_value = error
    watch.close()  # as at exit
    (finding,) = found(tmp_path / "run")
    assert finding.code == "RUN001" and not any("[RUN001]" in line for line in said)
    reported = watch.report().splitlines()
    assert reported[0].startswith("holdfast: crashed with ValueError after 3 steps")
    assert said[-1].splitlines() == reported and any(
        "  RUN001  ValueError: its own at " in t for t in reported[-4:]
    )


def test_an_exception_of_an_earlier_cell_is_none_of_the_loop(tmp_path: Path) -> None:
    sys.last_value = NameError("a typo")
    watch = loop(tmp_path / "run", None)
    watch.close()
    run = Run.open(tmp_path / "run")
    assert found(run.path) == [] and replay(run).ending.line == "finished"


def test_a_notebook_learns_of_it_with_the_next_call(tmp_path: Path) -> None:
    error = ValueError("its own")
    fails(tmp_path / "run", error)
    sys.last_value = error
    loop(tmp_path / "next", None)
    assert [f.code for f in found(tmp_path / "run")] == ["RUN001"]
    assert found(tmp_path / "next") == []


def test_neither_frames_nor_model_are_held(tmp_path: Path) -> None:
    """A script may catch out of memory and try again with a smaller batch."""
    held: list[weakref.ref] = []

    def attempt() -> None:
        net = nn.Linear(4, 1)
        held.append(weakref.ref(net))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with holdfast.watch(net, optimizer, run_dir=tmp_path / "run", say=[].append) as watch:
            watch.run_step(lambda x: net(x).square().mean(), torch.randn(8, 4))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")

    with pytest.raises(torch.OutOfMemoryError):
        attempt()
    gc.collect()
    assert held[0]() is None
    assert found(tmp_path / "run") == []


def test_out_of_memory_that_ends_the_script_is_explained_by_memory(tmp_path: Path) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB.")
    fails(tmp_path / "run", error)
    shown(error)
    (finding,) = found(tmp_path / "run")
    assert finding.code == "MEM008" and finding.evidence["asked"] == 1.5 * 2**30


@pytest.mark.parametrize(("code", "ends"), [(0, "finished"), (3, "failed with exit code 3")])
def test_an_exit_of_its_own_is_no_crash(tmp_path: Path, code: int, ends: str) -> None:
    fails(tmp_path / "run", SystemExit(code))
    run = Run.open(tmp_path / "run")
    assert found(run.path) == [] and ending_of(run, []).line == ends


def test_an_exception_that_was_given_up_on(tmp_path: Path) -> None:
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with (
        pytest.raises(SystemExit),
        holdfast.watch(net, optimizer, run_dir=tmp_path / "run", say=[].append) as watch,
    ):
        watch.run_step(lambda x: net(x).square().mean(), torch.randn(8, 4))
        try:
            {}["loss"]
        except KeyError:
            sys.exit(1)
    (finding,) = found(tmp_path / "run")
    assert finding.code == "RUN001" and "left with sys.exit(1)" in finding.message
    ending = replay(Run.open(tmp_path / "run")).ending
    assert ending.line.startswith("gave up with exit code 1 after KeyError: 'loss' at ")


def test_an_error_of_our_own_ends_the_run_whoever_tells_of_it(tmp_path: Path) -> None:
    fails(tmp_path / "run", HoldfastError("no more"))
    assert replay(Run.open(tmp_path / "run")).sick


def test_ctrl_c(tmp_path: Path) -> None:
    error = KeyboardInterrupt()
    fails(tmp_path / "run", error)
    assert replay(Run.open(tmp_path / "run")).ending.line == "interrupted from the keyboard"
    shown(error)
    assert found(tmp_path / "run") == []
    assert replay(Run.open(tmp_path / "run")).ending.line == "interrupted from the keyboard"

"""The benchmark of host time: its rows and parts, and a bound for the rows of a CPU."""

from __future__ import annotations

import time
from dataclasses import asdict
from types import SimpleNamespace

import pytest
from costing import parts, rows, steady
from costing.paired import Paired
from costing.parts import PartTimers
from costing.rows import ROWS, Row
from costing.steady import Blocks, Steady

import holdfast.boot.patches
from holdfast.boot import session
from holdfast.config import Settings
from holdfast.guard.engine import Engine
from holdfast.run import Recorder, Run


def test_a_row_that_cannot_run_here_says_why() -> None:
    assert Row(name="x", what="", needs="no_such_library").missing.startswith("no_such_library")
    assert Row(name="x", what="", needs="torch").missing == ""
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all((row.make is None) != (row.train is None) for row in ROWS)


def test_parts_add_up_and_only_their_own_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inner:
        def work(self) -> None:
            _busy(0.02)

    class Outer:
        def work(self) -> None:
            _busy(0.01)
            Inner().work()

    places = {"a": SimpleNamespace(Outer=Outer), "b": SimpleNamespace(Inner=Inner)}
    table = {"outer": {"a.Outer": "work"}, "inner": {"b.Inner": "work gone"}}
    monkeypatch.setattr(parts, "PARTS", table)
    monkeypatch.setattr(parts.importlib, "import_module", lambda name: places[name[-1]])
    timers = PartTimers()
    timers.install()
    Outer().work()
    spent = timers.per_step(1)
    assert spent["outer"] == pytest.approx(10_000, rel=0.3)
    assert spent["inner"] == pytest.approx(20_000, rel=0.3)
    assert timers.missing == ["Inner.gone"]
    timers.remove()
    assert not hasattr(Outer.work, "__wrapped__")


def test_every_part_is_still_in_the_guard() -> None:
    timers = PartTimers()
    timers.install()
    timers.remove()
    assert timers.missing == []


def test_added_is_reported_within_rounds() -> None:
    blocks = Blocks()
    plain = [100.0, 200.0, 300.0]
    blocks.times = {
        "plain": [[x, x, 10 * x] for x in plain],
        "again": [[x + 2] for x in plain],
        "guarded": [[x + 31] for x in plain],
    }
    blocks.cpu = {"plain": [1.0] * 3, "again": [3.0] * 3, "guarded": [7.0] * 3}
    blocks.warm = {"plain": (10, 2e3), "guarded": (10, 1e6 + 2310)}
    found = blocks.result(Row(name="x", what=""), {})
    assert (found.plain, found.added.middle, found.again.middle) == (200, 30, 2)
    assert found.cpu.middle == 5
    assert found.ratio == pytest.approx(231 / 201)
    assert found.until == pytest.approx(1.0, abs=0.01)
    assert Steady.read(asdict(found)) == found


def test_the_median_of_rounds_is_reported_with_its_bounds() -> None:
    """One burst of other work moves neither the median nor, with enough rounds, its bounds."""
    found = Paired.of([*range(40), 5000.0])
    assert (found.middle, found.low, found.high) == (20, 15, 25)
    few = Paired.of([3.0, 1.0, 2.0])
    assert (few.middle, few.low, few.high) == (2, 1, 3)


@pytest.mark.parametrize("name", ["loop", "scaler-clip", "cpu-1ms"])
def test_a_guarded_step_on_a_cpu_stays_below_a_generous_bound(
    name: str, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice what it takes on a busy machine: a part that became several times slower is noticed."""
    recorder = Recorder(Run.create(tmp_path / "run", {}), 0, 1, "", 1 << 24)
    monkeypatch.setattr(session, "_engine", Engine(Settings(), lambda: recorder))
    row = rows.find(name)
    try:
        found = steady.compare(row, 4, 10).result(row, {})
    finally:
        holdfast.boot.patches.uninstall()
    assert found.ratio < BOUNDS[name], found


BOUNDS = {"loop": 2.0, "scaler-clip": 2.0, "cpu-1ms": 2.5}


def _busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass

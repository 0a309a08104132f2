"""A sample of the drills; ``make prove`` runs all of them: benchmarks/drills.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import drills
import pytest
from drilling.score import Score, Try, quiet

# Storms of gradients; the instants of the kills are random all the same.
SEED = 2


# test_spikes.py, test_kill.py and test_resume.py, test_optimizers.py and test_failing_inside.py
# show the same in every test run, test_memory_limits.py, test_ranks.py and the fault of RUN004 too;
# full disks are met in the tests of checkpoint/ and run/; a worker takes long to die.
LONG = ("spikes", "dead worker", "kill -9", "NaN storms", "read-only folder", "disk full")
LONG += ("hang", "bad samples", "clock jumps", "out of memory", "ranks")


@pytest.mark.parametrize(
    "name",
    [pytest.param(d, marks=pytest.mark.slow if d in LONG else []) for d in drills.DRILLS],
)
def test_a_few_of_each(name: str) -> None:
    score = drills.DRILLS[name](True, SEED, quiet)
    assert score.tries
    assert not score.problems()


def test_what_was_not_survived_is_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def drill(quick: bool, seed: int, show: Any) -> Score:
        tries = [Try("good"), Try("gone", lost="all of it"), Try("quiet", silent="not a word")]
        return Score("made up", "nothing", tries)

    monkeypatch.setitem(drills.DRILLS, "made up", drill)
    monkeypatch.setattr(sys, "argv", ["drills.py", "--only", "made up", "--write", str(tmp_path)])
    assert drills.main() == 1
    out = capsys.readouterr().out
    assert "| made up | 3 | 1 | 1 | 1 |" in out
    assert "- made up: gone: lost: all of it" in out
    (written,) = tmp_path.iterdir()
    assert out.startswith(written.read_text())

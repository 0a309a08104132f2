"""``benchmarks/rules.py``: conditions are found, watched and switched off."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from detecting.conditions import watch
from detecting.running import write_trials
from detecting.trial import read_trial

from holdfast.faults.running import ProcessEnd

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

MODULE = """
def kind(number) -> str:
    if number > 10 and not number == 12:
        return "large"
    return "odd" if number % 2 else "even"

def small(number) -> bool:
    return number < 3

def evens(numbers):
    return [n for n in numbers if n % 2 == 0]

def name(given):
    return given or "nobody"
"""


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A module whose conditions are watched, and the conditions."""
    (tmp_path / "a_watched_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    conditions = watch(["a_watched_module"])
    yield importlib.import_module("a_watched_module"), conditions
    sys.meta_path[:] = finders
    del sys.modules["a_watched_module"]


def test_every_condition_is_found_and_a_default_is_none(watched):
    _, conditions = watched
    texts = ["number > 10", "number == 12", "number % 2", "number < 3", "n % 2 == 0"]
    assert [condition.text for condition in conditions.known] == texts
    assert conditions.known[0].line == 3


def test_a_watched_module_does_what_it_did_and_the_values_are_noted(watched):
    module, conditions = watched
    assert [module.kind(n) for n in (11, 12, 3, 4)] == ["large", "even", "odd", "even"]
    assert module.evens([1, 2]) == [2] and module.small(2) is True and module.name("") == "nobody"
    assert conditions.values[0] == {True, False} and conditions.values[3] == {True}


def test_one_condition_is_switched_off(watched):
    module, conditions = watched
    conditions.forced = (1, False)
    assert module.kind(12) == "large"
    conditions.forced = (0, False)
    assert module.kind(11) == "odd"
    conditions.forced = None
    assert module.kind(11) == "large"


@pytest.mark.slow
def test_the_rule_that_finds_a_fault_wins_its_script(tmp_path, make_run, make_rows):
    """In a process of its own: conditions are watched from the import of the detectors on."""
    collection, kept = tmp_path / "mine", tmp_path / "kept"
    collection.mkdir()
    (kept / "mine").mkdir(parents=True)
    rows = {
        "loss": make_rows(30, loss={5: np.nan}, loss_bad={5: 1}, skipped={5: 1}),
        "gradient": make_rows(30, grad_bad={5: 1}, skipped={5: 1}),
    }
    trials = {}
    for name in rows:
        (collection / f"{name}.py").touch()
        run = shutil.move(make_run(rows[name]).path, kept / "mine" / name)
        trials[f"mine/{name}"] = read_trial(f"mine/{name}", Path(run), ProcessEnd(0, 1.0))
    write_trials(kept, trials)
    answers = [{"script": "loss.py", "code": "NUM001"}, {"script": "gradient.py", "code": "NUM002"}]
    (collection / "answers.json").write_text(json.dumps(answers))
    words = [str(kept), str(collection), "--only", "_symptoms"]
    ended = subprocess.run(
        [sys.executable, BENCHMARKS / "rules.py", *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "2 runs" in ended.stderr
    wins = {row.split(" | ")[0].split("`")[1]: row.split(" | ")[2] for row in _rows(ended.stdout)}
    # Without it either every bad step is blamed on the loss, or none is.
    assert wins["loss"] == "1"
    assert wins["overflow"] == "0"


def _rows(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if "`" in line]


def test_a_folder_without_trials_is_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    rules = importlib.import_module("rules")
    assert rules.main([str(tmp_path)]) == 2
    assert "detection.py --keep" in capsys.readouterr().err

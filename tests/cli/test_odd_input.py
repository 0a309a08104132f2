"""A part of ``benchmarks/odd_input.py``: reading commands tell odd input in a line, at most."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from odd.base import write_base
from odd.cases import MORE, Case, command_lines, damages, fresh, systematic, write_configs

from holdfast.cli import main

# Larger ones are left to the benchmark.
SMALL = [case for case in damages(24) if "large" not in case.name and "long" not in case.name]
CASES = [*islice(systematic(), 0, None, 1700), *islice(systematic(MORE), 0, None, 2100), *SMALL]
COMMANDS = (
    "report {}", "check {}", "report {} --format md", "check {} --format github", "runs {}/..",
    "compare {} {}", "checkpoint list {}", "report {} --format json",
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("odd") / "base")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("part", range(4))
def test_no_odd_run_folder_gives_a_traceback(part, base, tmp_path, capsys):
    run = tmp_path / "runs" / "odd"
    for number, case in enumerate(CASES[part::4]):
        case.change(fresh(base, run))
        for words in (COMMANDS[0], COMMANDS[1], COMMANDS[number % len(COMMANDS)]):
            assert carried_out(words.format(run, run).split(), case) in (0, 1, 2)
        assert "\x1b" not in "".join(capsys.readouterr())


def carried_out(words: list[str], case: Case) -> int:
    try:
        return main(words)
    except Exception as error:
        raise AssertionError(f"{case.name}: holdfast {' '.join(words)}") from error


def test_every_kind_of_record_is_read_without_a_detector_that_fails(base, capsys):
    assert main(["check", str(base)]) == 1
    assert capsys.readouterr().err == ""


def test_no_odd_command_line_gives_a_traceback_or_runs_what_a_file_says(tmp_path, capsys):
    write_base(tmp_path / "runs" / "base")
    write_configs(tmp_path)
    for words in command_lines(40):
        # The other commands start processes or import torch: they have the benchmark.
        if words[0] not in ("run", "faults", "predict"):
            assert main(list(words)) in (0, 1, 2)
    assert not (tmp_path / "RAN").exists()
    capsys.readouterr()

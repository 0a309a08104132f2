"""The benchmark of kills: what a trial is compared by, and its table."""

from __future__ import annotations

import signal
from pathlib import Path

import torch
from kills import Ended, Outcome, Whole, _compared, _is_same, plain, planned, table

SCRIPT = """
import os
open("log.csv", "a").write("0,1\\n")
open("noise.bin", "wb").write(os.urandom(9))
print("FINAL 1")
print("FINAL 7")
"""


def _work(folder: Path, log: str) -> Path:
    work = folder / "work"
    (work / "runs").mkdir(parents=True)
    (work / "runs" / "ours.txt").write_text("not the script's")
    (work / "log.csv").write_text(log)
    (work / "noise.bin").write_bytes(b"other")
    return work


def test_a_trial_is_equal_only_with_the_last_line_and_all_files(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    whole = plain(script, tmp_path / "plain")
    assert isinstance(whole, Whole)
    assert whole.final == "FINAL 7"
    assert set(whole.files) == {"log.csv", "noise.bin"}
    ended = Ended(0, "FINAL 7\n", "", False)
    assert _compared(whole, script, _work(tmp_path / "a", "0,1\n"), ended, "equal") == ("equal", "")
    twice = _work(tmp_path / "b", "0,1\n0,1\n")
    assert _compared(whole, script, twice, ended, "equal") == (
        "WRONG",
        "files: log.csv (8 bytes, not 4)",
    )
    other = Ended(0, "FINAL 8\n", "", False)
    word, why = _compared(whole, script, twice, other, "equal")
    assert (word, "'FINAL 8', not 'FINAL 7'" in why) == ("WRONG", True)


def test_a_plan_is_a_list_of_kills() -> None:
    kills = planned("INT:10+KILL:50%", 80.0)
    assert [(one.signal, one.seconds) for one in kills] == [
        (signal.SIGINT, 10.0),
        (signal.SIGKILL, 40.0),
    ]


def test_the_table_counts_trials_and_scripts_that_refuse() -> None:
    text = table([Outcome("a", "INT:8", "equal"), Outcome("a", "KILL:9", "refused", "a | b")])
    assert "2 trials of 1 scripts: 1 equal, 1 refused; scripts with a refusal: 1." in text
    assert "| a | KILL:9 | refused | a / b |" in text


def test_weights_are_compared_by_value(tmp_path: Path) -> None:
    def saved(value: float, *, shared: bool) -> bytes:
        name = "momentum_buffer"
        other = name if shared else "".join(name)
        torch.save([{name: torch.tensor(value)}, {other: 1}], tmp_path / "a.pt")
        return (tmp_path / "a.pt").read_bytes()

    one, other = saved(0.5, shared=True), saved(0.5, shared=False)
    assert _is_same("a.pt", one, one + b"") and _is_same("a.pt", one, other)
    assert not _is_same("a.csv", b"1", b"2") and not _is_same("a.pt", one, b"no weights")
    assert not _is_same("a.pt", one, saved(0.25, shared=True)) and not _is_same("a.pt", one, None)

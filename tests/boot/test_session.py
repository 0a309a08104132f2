"""Which rank a process is, and whose line an exception is blamed on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.boot import session
from holdfast.diagnosis.crash.exception import user_line


@pytest.mark.parametrize(
    ("given", "rank"),
    [
        ({}, 0),
        ({"RANK": "3"}, 3),
        ({"RANK": "3", "SLURM_PROCID": "5", "MASTER_ADDR": "x"}, 3),
        # A job of one task per node that starts no process group has a task number, not a rank.
        ({"SLURM_PROCID": "5"}, 0),
        ({"SLURM_PROCID": "5", "MASTER_ADDR": "node1"}, 5),
        ({"RANK": ""}, 0),
        ({"RANK": "first"}, 0),
        ({"RANK": "-1"}, 0),
    ],
)
def test_rank(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], rank: int):
    for name in ("RANK", "SLURM_PROCID", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert session.rank() == rank


def test_the_innermost_line_of_the_user_is_blamed(tmp_path: Path):
    """Not the library's that raised, nor ours that passed it through."""
    path = tmp_path / "train.py"
    path.write_text("import json\ndef load():\n    json.loads('{')\nload()\n")
    code = compile(path.read_text(), str(path), "exec")
    with pytest.raises(ValueError) as caught:
        exec(code, {})
    assert user_line(caught.value.__traceback__) == (str(path), 3)


def test_nobody_is_blamed_for_what_has_no_line_of_the_user():
    assert user_line(None) == ("", 0)
    try:
        exec(compile("1 / 0", "<string>", "exec"), {})
    except ZeroDivisionError as error:
        traceback = error.__traceback__
        assert traceback is not None
        assert user_line(traceback.tb_next) == ("", 0)


@pytest.mark.parametrize(
    ("prefix", "script"),
    [("/usr", "/usr/src/app/train.py"), ("/home/me/env", "/home/me/env-tools/train.py")],
)
def test_a_script_below_the_prefix_of_python_is_still_the_users(
    monkeypatch: pytest.MonkeyPatch, prefix: str, script: str
):
    """Images keep the application in /usr/src/app, and Debian's python has the prefix /usr."""
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("1 / 0", script, "exec"), {})
    assert user_line(caught.value.__traceback__) == (script, 1)


def test_current_is_none_outside_a_run():
    assert session.current() is None

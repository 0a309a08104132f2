"""``holdfast demo`` finds its script in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli import demo
from holdfast.errors import UsageError


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package without a checkout around it, and an empty folder to work in."""
    monkeypatch.setattr(demo, "__file__", str(folder / "lib/python/site/holdfast/cli/demo.py"))
    work = folder / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder / "lib/python/site/holdfast/examples" / demo.SCRIPT


def test_a_checkout_runs_its_own_example():
    assert demo.find_script().parent.name == "examples"


def test_an_installed_package_runs_a_copy_that_counts_as_the_users_code(tmp_path, monkeypatch):
    script = installed(tmp_path, monkeypatch)
    script.parent.mkdir(parents=True)
    script.write_text("print('final loss nan')")
    copy = demo.find_script()
    assert copy == Path("runs") / demo.SCRIPT
    assert copy.read_text() == script.read_text()


def test_a_missing_example_is_one_line(tmp_path, monkeypatch):
    installed(tmp_path, monkeypatch)
    with pytest.raises(UsageError, match="reinstall"):
        demo.find_script()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    script = installed(tmp_path, monkeypatch)
    script.parent.mkdir(parents=True)
    script.touch()
    Path("runs").touch()
    with pytest.raises(UsageError, match="cannot write"):
        demo.find_script()

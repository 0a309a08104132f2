from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import types
from typing import Any

import pytest

from holdfast.cli import main


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside us offers nothing here."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])


class Family:
    """What a family can do.

    More about it.
    """

    name = "a_family"

    def prepare_parser(self, parser):
        verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)
        verbs.add_parser("eval").add_argument("--size", type=int, default=1)

    def run(self, args):
        return args.size


def like_family(**changes: Any) -> type[Any]:
    return type("Changed", (Family,), {"__doc__": "Another.", **changes})


@pytest.fixture
def plugin(monkeypatch):
    module: Any = types.ModuleType("holdfast_test_commands")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("HOLDFAST_PLUGINS", module.__name__)
    return module


def test_a_family_adds_a_command_with_verbs(plugin, capsys):
    plugin.COMMANDS = (Family,)
    assert main(["a_family", "eval", "--size", "5"]) == 5
    assert main(["a_family", "evla"]) == 2
    assert "invalid choice: 'evla'" in capsys.readouterr().err
    assert main(["a_family", "--help"]) == 0
    assert "More about it." in capsys.readouterr().out


def test_the_overview_lists_it_under_its_own_heading(plugin, capsys):
    plugin.COMMANDS = (Family, like_family(name="a_family_of_a_long_name"))
    assert main(["--help"]) == 0
    reported, _, added = capsys.readouterr().out.partition("\nfrom plugins:\n")
    assert "\n  run " in reported and "a_family" not in reported
    assert "\n  a_family     What a family can do\n" in added
    assert "\n  a_family_of_a_long_name Another\n" in added


def test_without_plugins_there_is_no_such_heading(capsys, monkeypatch):
    monkeypatch.delenv("HOLDFAST_PLUGINS", raising=False)
    assert main(["--help"]) == 0
    assert "from plugins" not in capsys.readouterr().out


def test_a_wrong_name_may_mean_one_of_a_plugin(plugin, capsys):
    plugin.COMMANDS = (Family,)
    assert main(["a_famly"]) == 2
    assert "did you mean 'a_family'?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "completion, a_family; see" in capsys.readouterr().err


def test_a_command_may_be_named_by_its_place(plugin):
    plugin.COMMANDS, plugin.Late = ("holdfast_test_commands:Late",), Family
    assert main(["a_family", "eval"]) == 1


def test_an_entry_point_adds_one(plugin, monkeypatch):
    monkeypatch.delenv("HOLDFAST_PLUGINS")
    plugin.Late = Family
    entry = importlib.metadata.EntryPoint("x", "holdfast_test_commands:Late", "holdfast.commands")
    asked: list[str] = []

    def entry_points(group: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(group)
        return [entry]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert main(["a_family", "eval", "--size", "3"]) == 3
    assert asked == ["holdfast.commands"]


@pytest.mark.parametrize(
    ("offered", "reason"),
    [
        (["nonsense:X"], "No module named 'nonsense'"),
        ([Family()], "is not a command class"),
        ([like_family(name="two words")], "has no name of small letters"),
        ([like_family(name=None)], "has no name"),
        ([like_family(name="--flag")], "has no name"),
        ([like_family(run=None)], "Changed has no run"),
        ([like_family(raw=True)], "Changed has no run_raw"),
        ([like_family(prepare_parser=None)], "Changed has no prepare_parser"),
        ([like_family(name="run")], "the name belongs to holdfast itself"),
        (7, "not iterable"),
    ],
)
def test_a_broken_one_is_a_warning_line(plugin, capsys, offered, reason):
    plugin.COMMANDS = offered
    assert main(["--help"]) == 0
    captured = capsys.readouterr()
    assert "from plugins" not in captured.out
    assert captured.err.startswith("holdfast: ") and captured.err.count("\n") == 1
    assert reason in captured.err and "holdfast_test_commands (HOLDFAST_PLUGINS)" in captured.err


def test_of_two_plugins_the_first_has_the_name(plugin, capsys):
    plugin.COMMANDS = (Family, like_family())
    assert main(["a_family", "eval"]) == 1
    assert "the name belongs to holdfast_test_commands" in capsys.readouterr().err


def test_our_own_commands_start_without_importing_plugins(plugin, capsys, monkeypatch):
    monkeypatch.setenv("HOLDFAST_PLUGINS", "no_such_plugin_module")
    assert main(["report", "--help"]) == 0
    assert capsys.readouterr().err == ""


def test_the_help_of_everything_imports_no_torch():
    code = (
        "import sys\nfrom holdfast.cli import main\n"
        "assert main(['--help']) == 0 and main(['train', '--help']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

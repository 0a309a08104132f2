from __future__ import annotations

import argparse
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import cli
from holdfast.cli import _commands, main
from holdfast.errors import UsageError

SRC = Path(holdfast.__file__).parents[1]


@pytest.fixture
def commands(monkeypatch):
    """Puts a command of the test's own into the list."""

    def put(command):
        module: Any = types.ModuleType("holdfast_test_command")
        module.Made = command
        monkeypatch.setitem(sys.modules, module.__name__, module)
        known = (*_commands.COMMANDS, (command.name, module.__name__, "Made"))
        monkeypatch.setattr(_commands, "COMMANDS", known)

    return put


class Simple:
    """Does one thing."""

    name = "simple"
    seen: argparse.Namespace

    def prepare_parser(self, parser):
        parser.add_argument("--size", type=int)
        parser.add_argument("--format", choices=("a", "b"))

    def run(self, args):
        return 7 if args.size is None else args.size


def one_line(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("holdfast: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"


def test_help_lists_the_commands_that_are_there(capsys):
    assert main(["--help"]) == 0
    reported = capsys.readouterr().out
    for name in ("report", "check", "explain"):
        assert f"\n  {name} " in reported


def test_no_command_is_a_mistake_that_shows_the_help(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "usage: holdfast COMMAND" in captured.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["reprot"], "did you mean 'report'?"),
        (["xyzzy"], "there are run, train, predict, runs, report"),
        (["--foo"], "unknown option '--foo'"),
        (["report", "--fromat", "json"], "unknown option '--fromat', did you mean '--format'?"),
        (["report", "--fromat=json"], "did you mean '--format'?"),
        (["report", "--format", "yaml"], "invalid choice: 'yaml'"),
        (["report", "--output"], "expected one argument"),
        (["report", "--form", "json"], "unknown option '--form', did you mean '--format'?"),
        (["report", "a", "b"], "unexpected argument 'b'"),
        (["compare"], "required: A"),
        (["explain", "--zzz"], "unknown option '--zzz'; see: holdfast explain --help"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, words, says):
    assert main(words) == 2
    line = one_line(capsys)
    assert says in line
    assert "--help" in line


def test_a_script_without_run_is_understood(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["train.py"]) == 2
    assert "holdfast run train.py" in one_line(capsys)


def test_help_of_a_command_is_its_docstring(capsys):
    assert main(["report", "--help"]) == 0
    reported = capsys.readouterr().out
    assert "usage: holdfast report" in reported
    assert "Report on a run" in reported


def test_a_command_gets_its_arguments_and_gives_the_exit_code(commands):
    commands(Simple)
    assert main(["simple"]) == 7
    assert main(["simple", "--size", "3"]) == 3


def test_a_wrong_type_is_one_line(commands, capsys):
    commands(Simple)
    assert main(["simple", "--size", "big"]) == 2
    assert "invalid int value: 'big'" in one_line(capsys)


def test_a_raw_command_gets_every_word_untouched(commands):
    class Raw(Simple):
        raw = True

        def run_raw(self, argv, parser):
            assert parser.parse_args(["--size", "1"]).size == 1
            assert argv == ["--size", "x", "script.py", "--", "-h", "--size"]
            return 5

    commands(Raw)
    assert main(["simple", "--size", "x", "script.py", "--", "-h", "--size"]) == 5


def test_help_inside_a_raw_command(commands, capsys):
    class Raw(Simple):
        raw = True

        def run_raw(self, argv, parser):
            parser.parse_args(argv)
            raise AssertionError("not reached")

    commands(Raw)
    assert main(["simple", "--help"]) == 0
    assert "Does one thing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [(UsageError("two\nlines"), 2), (KeyboardInterrupt(), 130), (BrokenPipeError(), 141)],
)
def test_what_a_command_may_raise(commands, capfd, error, code):
    class Raising(Simple):
        def run(self, args):
            raise error

    commands(Raising)
    keep = os.dup(1)
    try:
        assert main(["simple"]) == code
    finally:
        os.dup2(keep, 1)
        os.close(keep)
    reported = capfd.readouterr().err
    assert reported == ("holdfast: error: two lines\n" if code == 2 else "")


def test_a_bug_is_not_hidden(commands):
    class Buggy(Simple):
        def run(self, args):
            raise ZeroDivisionError

    commands(Buggy)
    with pytest.raises(ZeroDivisionError):
        main(["simple"])


def test_a_command_that_is_not_there_yet_does_not_break_the_help(monkeypatch, capsys):
    known = (*_commands.COMMANDS, ("later", "holdfast.cli.no_such_module", "LaterCommand"))
    monkeypatch.setattr(_commands, "COMMANDS", known)
    assert main(["--help"]) == 0
    assert "later" not in capsys.readouterr().out


def test_every_command_that_is_there_keeps_the_contract():
    for name, module, cls in cli.COMMANDS:
        if _commands.importlib.util.find_spec(module) is None:
            continue
        command = _commands.find_command(name)
        assert type(command).__name__ == cls and command.name == name
        assert len((command.__doc__ or "").strip().splitlines()[0]) < 80
        assert callable(command.run_raw if getattr(command, "raw", False) else command.run)


def python(*words, **kwargs):
    env = os.environ | {"PYTHONPATH": str(SRC)}
    command = [sys.executable, *words]
    return subprocess.run(command, env=env, text=True, capture_output=True, timeout=60, **kwargs)


def test_python_m_holdfast():
    done = python("-m", "holdfast", "explain", "NUM999")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


def test_a_reader_that_has_gone_is_no_reason_to_complain():
    script = (
        f"import sys; sys.path.insert(0, {str(SRC)!r}); from holdfast.cli import main; "
        "sys.exit(main(['explain', 'NUM001']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait(timeout=30) == 141


def test_the_command_line_stays_light():
    done = python("-X", "importtime", "-c", "import holdfast.cli, sys; print(*sorted(sys.modules))")
    loaded = set(done.stdout.split())
    assert not loaded & {"torch", "numpy", "rich", "holdfast.report", "holdfast.detectors"}


def test_little_is_imported_before_the_script_starts(tmp_path):
    """Whatever comes before delays every run; the rest comes while python starts."""
    (tmp_path / "script.py").write_text("")
    code = (
        "import os, sys\n"
        "def spawn(*args, **named):\n"
        "    print(*sys.modules)\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
        "os.posix_spawnp = spawn\n"
        "from holdfast.cli import main\n"
        f"main(['run', '--run-dir', {str(tmp_path / 'run')!r}, '--quiet', "
        f"'--health', '5', {str(tmp_path / 'script.py')!r}])\n"
    )
    loaded = set(python("-c", code).stdout.split())
    assert {"holdfast.launcher.supervisor"} <= loaded
    heavy = {"numpy", "rich", "yaml", "email", "importlib.metadata", "difflib"}
    ours = {"holdfast.detectors", "holdfast.report", "holdfast.launcher.stacks"}
    assert not loaded & (heavy | ours)

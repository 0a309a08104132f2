"""``holdfast completion``: asked of bash itself, word for word."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.cli import COMMANDS, main
from holdfast.cli._commands import find_command
from holdfast.cli._completion import node_of


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "holdfast.bash"
    with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
        patch.setenv("HOLDFAST_PLUGINS", "none")
        patch.setattr("sys.stdout", file)
        assert main(["completion", "bash"]) == 0
    return path


@pytest.fixture
def complete(script: Path, tmp_path: Path):
    """What bash offers for a line; its last word is the one that is being written."""
    (tmp_path / "runs" / "2026-11-15-1204-train").mkdir(parents=True)
    (tmp_path / "train.py").touch()

    def ask(*words: str) -> list[str]:
        listed = " ".join(f"'{word}'" for word in ("holdfast", *words))
        lines = [
            f"source '{script}'",
            f"COMP_WORDS=({listed})",
            f"COMP_CWORD={len(words)}",
            "_holdfast",
            "printf '%s\\n' \"${COMPREPLY[@]}\"",
        ]
        done = subprocess.run(
            ["bash", "--norc", "-uc", "\n".join(lines)],
            cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30,
        )  # fmt: skip
        assert done.stderr == ""
        return done.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ru"], ["run", "runs"]),
        (["report", "--f"], ["--format"]),
        (["report", "--format", "s"], ["sarif"]),
        (["report", "--format", "=", "s"], ["sarif"]),
        (["report", "2026"], ["2026-11-15-1204-train"]),
        (["open", "la"], ["last"]),
        (["checkpoint", "pr"], ["prune"]),
        (["checkpoint", "prune", "--dr"], ["--dry-run"]),
        (["runs", "pr"], ["prune"]),
        (["runs", "prune", "--o"], ["--older-than"]),
        (["explain", "NUM00"], [f"NUM00{i}" for i in range(1, 7)]),
        (["completion", "f"], ["fish"]),
        (["run", "--resume", "a"], ["auto"]),
        (["run", "--quiet", "t"], ["train.py"]),
        # What follows the script is its own.
        (["run", "--run-dir", "out", "train.py", "--q"], []),
        (["run", "train.py", "tr"], ["train.py"]),
        (["faults", "run", "--run-d"], ["--run-dir"]),
    ],
)
def test_bash_offers(complete, words, offered):
    assert complete(*words) == offered


def test_every_command_is_offered(complete):
    assert set(complete("")) >= {name for name, _, _ in COMMANDS}


def test_every_visible_option_is_offered(complete):
    for name, _, _ in COMMANDS:
        for node in node_of(find_command(name)).walk():
            known = {word for option in node.options for word in option.names}
            assert set(complete(*node.path, "-")) == known


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_itself_reads_its_script(shell, tmp_path, capsys):
    assert main(["completion", shell]) == 0
    reported = capsys.readouterr().out
    assert "holdfast" in reported and "older-than" in reported
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here to check its script")
    (tmp_path / "script").write_text(reported)
    subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=30)


def test_the_shell_of_the_user_is_the_default(monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert main(["completion"]) == 0
    assert capsys.readouterr().out.startswith("# Completion of holdfast for fish")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main(["completion"]) == 2
    assert "name one: holdfast completion bash" in capsys.readouterr().err

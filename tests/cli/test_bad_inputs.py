"""Bad inputs of all commands: one line that says what to do, an exit code, never a traceback.

The mistakes at the command line of ``run``, ``report`` and ``check`` that need a process stand in
``tests/e2e/test_bad_input.py``.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import torch_version
from holdfast.cli import main
from holdfast.launcher import supervisor
from holdfast.run import Run

META: dict[str, Any] = {
    "script": "train.py",
    "command": ["train.py"],
    "created": "2026-01-01T00:00:00+00:00",
    "status": "finished",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything a mistaken command line could point at."""
    folder = tmp_path_factory.mktemp("bad")
    for name, content in {
        "train.py": b"open('ran', 'w')\nraise SystemExit('this must not run')\n",
        "photo.py": b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe",
        "letter.txt": b"Dear reader,\nthis is no program.\n",
        "number.py": b"RECIPE = 3\n",
        "raises.py": b"raise RuntimeError('no')\n",
        "file": b"",
        "empty.yaml": b"",
        "broken.yaml": b"a: b: c\n\t- x",
        "binary.yaml": b"\xff\xfe\x00",
        "list.yaml": b"- 1\n- 2\n",
        "unknown.yaml": b"train:\n  stepz: 5\n",
        "garbage.safetensors": bytes(range(256)) * 20,
        "garbage.json": b"{}",
        "no_json/x": b"",
        "strange/run.json": b'{"format":1,"created":5,"status":[],"settings":[1],"command":7}',
        "garbage/run.json": b"\xff\x00\xfe",
        "future/run.json": b'{"format": 99}',
        "tracked/run.json": b'{"format":1,"created":null,"settings":{"track":{"to":5}}}',
        "damaged/step-0000000001.r0.safetensors": b"abc",
        "damaged/step-0000000001.r0.json": b"[]",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    script = folder / "train.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    (folder / "folder").mkdir()
    Run.create(folder / "runs" / "good", META)
    Run.create(folder / "runs" / "goods", META | {"script": "demo"})
    return folder


@pytest.fixture(autouse=True)
def folder(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, in which a mistake must leave nothing behind."""
    monkeypatch.chdir(prepared)
    monkeypatch.setenv("HOLDFAST_PLUGINS", "none")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    before = left_in(prepared)
    yield prepared
    assert left_in(prepared) == before


def left_in(folder: Path) -> list[Path]:
    """Everything but compiled code, which python leaves where it imports a recipe."""
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return sorted(found)


# A command line, and what its one line must say; all end with code 2.
MISTAKES = """
runn train.py                                    | did you mean 'run'?
--verson                                         | unknown option '--verson' before a command
help runn                                        | did you mean 'run'?

run                                              | nothing to run
run --                                           | nothing to run
run ''                                           | nothing to run
run --quiet                                      | nothing to run
run --on train.py                                | nothing to run
run -u train.py                                  | write `holdfast run python -u train.py`
run -c                                           | -c needs code
run -m                                           | -m needs a module name
run python -m                                    | -m needs a module name
run python -c                                    | -c needs code
run python trian.py                              | did you mean train.py?
run python photo.py                              | photo.py is not Python
run python folder                                | folder without a __main__.py
run python -m no_such_module_xyz                 | no module named 'no_such_module_xyz'
run python3.99 train.py                          | no program 'python3.99' on the path
run pyhton train.py                              | did you mean python?
run nice python train.py                         | `nice holdfast run python train.py`
run ./train.sh                                   | is a script for sh, not for python
run accelerate                                   | write `holdfast run accelerate launch
run uv sync                                      | write `holdfast run uv run
run poetry install                               | write `holdfast run poetry run
run --restart -1 train.py                        | restart.times must be a whole number
run --restart 2 -m torch.distributed.run x.py    | leave it to their launcher
run --resume auto -m torch.distributed.run x.py  | several ranks are not supported
run --resume strange train.py                    | give the same script and arguments
run --resume good train.py                       | no checkpoint was written yet
run --resume good python -I train.py             | --resume needs a guarded run: python -I
run --hang-after soon train.py                   | run.hang_after must be a number
run --checkpoint-minutes nan train.py            | checkpoint.minutes must be a number
run --clip-norm inf train.py                     | clip.norm must be a number above 0
run --health=-3 train.py                         | run.health must be a whole number
run --run-dir '' train.py                        | the value of --run-dir is empty
run --run-dir= train.py                          | the value of --run-dir is empty
run --run-dir runs/good train.py                 | already holds a run
run --track wandb train.py                       | invalid choice: 'wandb'
run --config broken.yaml train.py                | broken.yaml

report ''                                        | an argument is empty
report strang                                    | strang does not exist
report good --output folder                      | cannot write folder
report goo                                       | is the beginning of 2 runs
report tracked --format pdf                      | invalid choice: 'pdf'
check garbage                                    | garbage
check good --ignore ZZZ                          | no detector code starts with 'ZZZ'

runs nowhere                                     | nowhere is no folder
runs file                                        | file is no folder
runs --limit -3                                  | write a number of at least 1
runs --limit many                                | invalid int value: 'many'
runs prune                                       | no rule was given
runs prune --keep -1                             | write a number of at least 0
runs prune --older-than soon                     | write a number and a unit
runs prune '' --keep 1                           | an argument is empty

compare good                                     | write the run to compare it with
compare good file                                | file is a file
compare strange good                             | strange has no steps to compare
compare good goods --fail-on speed=5%            | does not know 'speed'
compare good goods --fail-on loss=-5%            | give 10%, 0.1 or off

explain XYZ999                                   | `holdfast explain` lists all of them

faults                                           | required: VERB
faults lst                                       | invalid choice: 'lst'
faults run nonfinite_los                         | did you mean 'nonfinite_loss'?
faults list --only XYZ                           | no fault is called 'XYZ'
faults run nonfinite_loss --run-dir file         | choose another with --run-dir
demo --run-dir file                              | file is a file
demo --run-dir runs/good                         | already holds a run
demo now                                         | unexpected argument 'now'

checkpoint                                       | required: VERB
checkpoint frobnicate x                          | invalid choice: 'frobnicate'
checkpoint ls nowhere                            | nowhere does not exist
checkpoint ls good                               | there is no checkpoint in good
checkpoint ls file                               | file is no checkpoint
checkpoint show damaged                          | there is no good checkpoint in damaged
checkpoint diff damaged                          | required: PATH
checkpoint export damaged /no/such/out.pt        | there is no good checkpoint in damaged
checkpoint prune damaged --last 0                | not a whole number of at least 1
checkpoint prune damaged --mode up               | invalid choice: 'up'

track good                                       | no tracker was named
track good --to wandb                            | invalid choice: 'wandb'
track good --to json --every 0                   | every must be a whole number of at least 1
track tracked                                    | tracked: to must be a list
track future --to json                           | future
track strange                                    | no tracker was named

predict                                          | required: RUN
predict file                                     | file is a file
predict good                                     | was not made by holdfast train
predict good --entries 9:3                       | write FIRST:LAST
predict good --data test                         | invalid choice: 'test'

train                                            | no recipe was given
train dmo                                        | did you mean 'demo'?
train nothing.py                                 | no such recipe file: nothing.py
train number.py                                  | RECIPE in number.py is of type int, no recipe
train raises.py:X                                | raises.py cannot be imported: RuntimeError: no
train photo.py:X                                 | photo.py cannot be imported: SyntaxError
train json:X                                     | nothing is called 'X' in json
train demo --preset huge                         | has no preset 'huge'
train demo --platform moon                       | no platform 'moon'
train demo --set train.steps                     | no value
train demo --set train.steps=-5                  | train.steps must be a whole number
train demo --set train.optimizer.lr=nan          | train.optimizer.lr must be a number above 0
train demo --set train.optimzer.lr=1             | did you mean 'train.optimizer'?
train demo --set train.device=tpu                | device 'tpu' is none torch knows
train demo --config nowhere.yaml                 | nowhere.yaml: no such file
train demo --config folder                       | folder: is a directory
train demo --config broken.yaml                  | not valid YAML, line 1
train demo --config binary.yaml                  | not UTF-8 text
train demo --config list.yaml                    | holds no settings
train demo --config unknown.yaml                 | unknown.yaml
train demo --resume                              | does not say which run
train demo --resume good                         | cannot be resumed
train demo --run-dir ''                          | the value of --run-dir is empty
train demo --run-dir runs/good                   | already holds a run
train demo --jobs 2                              | --jobs is about a scan
train demo --scan train.optimizer.lr=1 --jobs 0  | there has to be at least one
train demo --scan train.optimizer.lr=1,fast      | must be a number above 0
train demo --scan-table file                     | file holds no scan
"""
TABLE = [tuple(part.strip() for part in row.rsplit("|", 1)) for row in MISTAKES.splitlines() if row]


def complain(capsys: pytest.CaptureFixture[str], words: Sequence[str], code: int = 2) -> str:
    """Carry out a command line in this process; its one line."""
    assert main(words) == code
    reported = capsys.readouterr()
    assert reported.err.startswith("holdfast: error: ") and reported.err.endswith("\n")
    assert reported.err.count("\n") == 1 and reported.out == ""
    assert len(reported.err) > 40, "says nothing"
    return reported.err


@pytest.mark.parametrize(("command", "says"), TABLE, ids=[row[0] for row in TABLE])
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], command: str, says: str):
    words = ["" if word == "''" else word for word in command.split()]
    assert says in complain(capsys, words)


def test_there_are_enough_of_them_and_none_twice():
    assert len(TABLE) >= 60 and len(set(TABLE)) == len(TABLE)


@pytest.mark.parametrize("verb", ["show", "diff", "export"])
def test_a_damaged_checkpoint_is_reported_by_the_exit_code(
    capsys: pytest.CaptureFixture[str], verb: str
):
    more = {"show": [], "diff": ["garbage.safetensors"], "export": ["out.pt"]}[verb]
    words = ["checkpoint", verb, "garbage.safetensors", *more]
    assert "garbage.json is damaged" in complain(capsys, words, code=1)


@pytest.mark.parametrize("command", ["train demo", "train --list", "predict good", "demo",
                                     "faults run nonfinite_loss"])  # fmt: skip
def test_without_torch(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(torch_version.importlib.util, "find_spec", lambda name: None)
    assert "needs torch, which is not installed here" in complain(capsys, command.split())


@pytest.mark.parametrize("package", ["psutil", "yaml"])
def test_without_a_package_that_holdfast_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
):
    def find(*given: object) -> None:
        raise ModuleNotFoundError(f"No module named '{package}'", name=f"{package}.sub")

    monkeypatch.setattr("holdfast.cli.runs.found_runs", find)
    assert f"this needs {package}, which is not installed here" in complain(capsys, ["runs"])


def test_a_module_of_our_own_that_is_missing_is_a_bug_and_told_as_one(
    monkeypatch: pytest.MonkeyPatch,
):
    def find(*given: object) -> None:
        raise ModuleNotFoundError("No module named 'holdfast.x'", name="holdfast.x")

    monkeypatch.setattr("holdfast.cli.runs.found_runs", find)
    with pytest.raises(ModuleNotFoundError):
        main(["runs"])


def test_an_error_of_a_recipe_keeps_its_traceback(tmp_path: Path):
    """It is the user's code: a line without the place in it would help nobody."""
    recipe = tmp_path / "reads_what_is_not_there.py"
    recipe.write_text(
        "import dataclasses\n"
        "from holdfast.training.demo import RECIPE as DEMO\n"
        "def build(settings, place):\n"
        "    open('no such data')\n"
        "RECIPE = dataclasses.replace(DEMO, name='mine', build=build)\n"
    )
    with pytest.raises(FileNotFoundError, match="no such data"):
        main(["train", str(recipe), "--find-batch"])


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that cannot be written to, also for root."""
    real_open, real_os_open = builtins.open, os.open

    def refuse(path: object, *given: object, **named: object) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def open_(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        writes = set(mode) & set("wax+") and isinstance(file, str | os.PathLike)
        return (refuse if writes else real_open)(file, mode, *given, **named)

    def os_open(path: Any, flags: int, *given: Any, **named: Any) -> Any:
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        return (refuse if writes else real_os_open)(path, flags, *given, **named)

    for name, function in (("mkdir", refuse), ("open", os_open), ("rename", refuse),
                           ("replace", refuse), ("unlink", refuse)):  # fmt: skip
        monkeypatch.setattr(os, name, function)
    monkeypatch.setattr(builtins, "open", open_)
    monkeypatch.setattr(io, "open", open_)


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize(
    "command",
    [
        "run --restart 1 train.py",
        "demo --run-dir out",
        "train demo --run-dir out",
        "report good --format html",
        "report good --output out.txt",
        "faults run nonfinite_loss --run-dir out",
    ],
)
def test_a_read_only_folder(capsys: pytest.CaptureFixture[str], command: str):
    assert "Read-only file system" in complain(capsys, command.split())


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize("options", [[], ["--run-dir", "out"], ["--quiet"]])
def test_a_read_only_folder_stops_no_script(monkeypatch: pytest.MonkeyPatch, options: list[str]):
    said: list[str] = []
    ended = supervisor.Outcome(pid=0, status=4 << 8)
    monkeypatch.setattr(supervisor, "say", said.append)
    monkeypatch.setattr(supervisor, "supervise", lambda argv, run, settings: ended)
    assert main(["run", *options, "train.py"]) == 4
    (line,) = said
    assert line.startswith("holdfast: this run cannot be recorded or saved, but it is guarded: ")
    assert "Read-only file system" in line


@pytest.mark.parametrize("command", ["runs", "report good", "check good", "explain", "--help",
                                     "--version", "report good --format json"])  # fmt: skip
def test_a_full_disk_behind_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
):
    full = open("/dev/full", "w")  # noqa: SIM115
    monkeypatch.setattr(sys, "stdout", full)
    try:
        assert main(command.split()) == 2
    finally:
        with contextlib.suppress(OSError):
            full.close()
    reported = capsys.readouterr().err
    assert "No space left on device" in reported and reported.count("\n") == 1


@pytest.mark.parametrize("closed", [["stdout"], ["stderr"], ["stdout", "stderr"]])
@pytest.mark.parametrize(
    ("command", "code"),
    [("runs", 0), ("report good", 0), ("check good", 0), ("reprot", 2), ("--help", 0)],
)
def test_a_closed_stream(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    code: int,
    closed: list[str],
):
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    assert main(command.split()) == code
    for name in closed:
        getattr(sys, name).close()
    reported = capsys.readouterr()
    assert not ("stdout" in closed and reported.out) and not ("stderr" in closed and reported.err)


class Terminal(io.StringIO):
    """A terminal that is ten columns wide."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", ["10", "1", "0", "-5", "many"])
@pytest.mark.parametrize("command", ["runs", "report good", "check good", "explain NUM001",
                                     "explain", "run --help", "train --list"])  # fmt: skip
def test_a_tiny_terminal(monkeypatch: pytest.MonkeyPatch, command: str, columns: str):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "2")
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert main(command.split()) == 0
    assert screen.getvalue().strip()


def test_a_folder_that_is_gone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for command in ("run train.py", "run -m pkg", "report", "demo"):
        complain(capsys, command.split())

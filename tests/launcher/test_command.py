"""Which program is started for what follows ``holdfast run``, and which python of it trains."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.boot import unguarded
from holdfast.errors import UsageError
from holdfast.launcher import interpreter
from holdfast.launcher.command import ScriptCommand, read_command, read_shebang
from holdfast.launcher.interpreter import is_ours, keeps_out
from holdfast.launcher.python_call import PythonCall, inherited_options


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory, with programs of the test's own in front of the path."""
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)
    python = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{python}:/usr/bin:/bin")
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


def put(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def interpreter_that_answers(path: Path, version: str, missing: str = "") -> Path:
    """A stand-in of another environment's python, which says what it is asked for."""
    return put(path, f"#!/bin/sh\necho {version}\necho {missing}\n")


def line(read: ScriptCommand) -> str:
    """What is said of a command that cannot be guarded; empty for others."""
    out = keeps_out(read)
    return "" if out is None else unguarded(*out)


@pytest.mark.parametrize(
    ("words", "kind", "target", "letters"),
    [
        ("train.py -S", "script", "train.py", ""),
        ("-u -X dev -m pkg.train -I", "module", "pkg.train", "u"),
        ("-Xdev -Wignore -OO train.py", "script", "train.py", "O"),
        ("-W ignore -c 1 -E", "code", "1", ""),
        ("-um pkg", "module", "pkg", "u"),
        ("-Bmpkg", "module", "pkg", "B"),
        ("- -I", "stdin", "-", ""),
        ("--check-hash-based-pycs never -E train.py", "script", "train.py", "E"),
        ("-uIB train.py", "script", "train.py", "BIu"),
        ("-V", "", "", "V"),
        ("", "", "", ""),
        ("-m", "module", "", ""),
        ("-X", "", "", ""),
    ],
)
def test_python_is_read_as_it_reads_itself(words: str, kind: str, target: str, letters: str):
    call = PythonCall.read(words.split())
    assert (call.kind, call.target, "".join(sorted(call.letters))) == (kind, target, letters)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("python -uE -X dev -m holdfast run -u", ["-u", "-X", "dev"]),
        ("python -I /bin/holdfast run", []),
        ("python -W error -S -Xdev --check-hash-based-pycs never -m holdfast",
         ["-W", "error", "-Xdev", "--check-hash-based-pycs", "never"]),
        ("python -W -m -B x", ["-W", "-m", "-B"]),
    ],
)  # fmt: skip
def test_options_of_our_own_python_are_inherited(words: str, options: list[str]):
    assert inherited_options(words.split()) == options


@pytest.mark.parametrize(
    ("words", "name", "source"),
    [
        ("train.py --lr 1", "train.py", "train.py"),
        ("-m pkg.train", "pkg_train", ""),
        ("-c print(1)", "code", ""),
        ("-", "stdin", ""),
    ],
)
def test_without_a_program_it_is_our_own_python(words: str, name: str, source: str):
    read = read_command(words.split())
    assert read.argv[0] == sys.executable and list(read.argv[-1:]) == words.split()[-1:]
    assert (read.name, read.source, read.interpreter, read.several) == (name, source, "", False)


@pytest.mark.parametrize(
    ("words", "name", "source"),
    [
        ("python train.py --lr 1", "train.py", "train.py"),
        ("python3 -u -X dev -m pkg.train", "pkg_train", ""),
        ("python -c print(1)", "code", ""),
        ("python -", "stdin", ""),
        ("python", "python", ""),
    ],
)
def test_python_is_started_as_it_is_written(words: str, name: str, source: str):
    read = read_command(words.split())
    assert list(read.argv) == list(read.words) == words.split()
    assert (read.name, read.source, read.several) == (name, source, False)
    assert read.interpreter == words.split()[0] and keeps_out(read) is None


@pytest.mark.parametrize(
    ("words", "name", "several"),
    [
        ("torchrun --nproc-per-node 2 train.py", "train.py", True),
        ("accelerate launch -m pkg.train", "pkg_train", True),
        ("deepspeed --num_gpus 2 train.py", "train.py", True),
        ("uv run --with numpy train.py", "train.py", False),
        ("uv run --with accelerate train.py", "train.py", False),
        ("uv run torchrun x.py", "x.py", True),
        ("uv run python -m torch.distributed.run x.py", "torch_distributed_run", True),
        ("poetry run python -u -m pkg", "pkg", False),
        ("poetry run train", "poetry", False),
        ("python -m torch.distributed.run train.py", "torch_distributed_run", True),
        ("-m accelerate.commands.launch train.py", "accelerate_commands_launch", True),
    ],
)
def test_launchers(folder: Path, words: str, name: str, several: bool):
    for launcher in ("torchrun", "accelerate", "deepspeed", "uv", "poetry"):
        put(folder / "bin" / launcher, f"#!{sys.executable}\n")
    read = read_command(words.split())
    assert list(read.words) == words.split() and (read.name, read.several) == (name, several)
    assert list(read.argv[-len(read.words) :]) == list(read.words)
    assert keeps_out(read) is None


def test_a_launcher_beside_our_python_is_found_off_the_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    (folder / "own").mkdir()
    ours = put(folder / "own" / "torchrun", f"#!{sys.executable}\n")
    monkeypatch.setattr(sys, "executable", str(folder / "own" / "python"))
    monkeypatch.setenv("PATH", str(folder / "bin"))
    words = ["torchrun", "--nproc-per-node", "2", "train.py"]
    read = read_command(words)
    assert (list(read.words), list(read.argv)) == (words, [str(ours), *words[1:]])
    assert (read.launcher, read.several, read.name) == ("torchrun", True, "train.py")
    # What an activated environment has comes first, and what nobody has is said.
    put(folder / "bin" / "torchrun", f"#!{sys.executable}\n")
    assert list(read_command(words).argv) == words
    with pytest.raises(UsageError, match="no program 'accelerate' on the path"):
        read_command(["accelerate", "launch", "train.py"])


@pytest.mark.parametrize(
    ("words", "source"),
    [
        ("uv run train.py --lr 1", "train.py"),
        ("poetry run python -u train.py", "train.py"),
        ("uv run -m pkg", ""),
        ("torchrun train.py", ""),
    ],
)
def test_the_script_behind_a_launcher(folder: Path, words: str, source: str):
    """By which a run to be resumed is known to be of the same script."""
    for launcher in ("torchrun", "uv", "poetry"):
        put(folder / "bin" / launcher, "#!/bin/sh\n")
    assert read_command(words.split()).source == source


def test_a_folder_of_the_name_of_a_launcher_is_a_folder(folder: Path):
    (folder / "deepspeed").mkdir()
    assert read_command(["./deepspeed"]).argv[-1] == "./deepspeed"
    put(folder / "bin" / "deepspeed", "#!/bin/sh\n")
    assert read_command(["deepspeed", "x.py"]).launcher == "deepspeed"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/usr/bin/env python3", ["python3"]),
        ("#!/usr/bin/env -S A=1 python3 -u -X dev", ["python3", "-u", "-X", "dev"]),
        ("#!/env/bin/python -I", ["/env/bin/python", "-I"]),
        ("#!/bin/sh\n'''exec' \"/a b/python3\" \"$0\" \"$@\"\n' '''", ["/a b/python3"]),
        ("print(1)", []),
        ("#!", []),
        ("#!'", []),
    ],
)
def test_the_first_line_names_the_interpreter(folder: Path, text: str, words: list[str]):
    assert read_shebang(put(folder / "train", f"{text}\nprint(1)\n")) == words


def test_a_script_with_a_first_line_is_started_by_it(folder: Path):
    put(folder / "train", "#!/usr/bin/env -S python3 -u\nprint(1)\n")
    read = read_command(["train", "x"])
    assert read.argv == ("./train", "x") and read.interpreter == "python3"
    assert (read.name, read.source) == ("train", "train") and keeps_out(read) is None
    # One on the path, as pip installs them.
    found = put(folder / "bin" / "mytrain", f"#!{sys.executable} -I\n")
    read = read_command(["mytrain"])
    assert read.argv == (str(found),) and "python -I" in line(read)
    # A file ending in .py, and one that cannot be executed, are for our own python, as ever.
    for name in ("train.py", "plain"):
        (folder / name).write_text("#!/usr/bin/env python3\n")
        (folder / name).chmod(0o755 if name == "train.py" else 0o644)
        assert read_command([name]).argv[0] == sys.executable


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nice -n 5 python train.py", "`nice -n 5 holdfast run python train.py`"),
        ("env A=1 torchrun x.py", "`env A=1 holdfast run torchrun x.py`"),
        ("sh train.sh", "write `holdfast run` in front of the python"),
        ("./train.sh", "./train.sh is a script for sh, not for python"),
        ("python3.99 train.py", "no program 'python3.99' on the path"),
        ("/no/python train.py", "cannot start /no/python: it does not exist"),
        ("./python train.py", "cannot start ./python: it is not executable"),
        ("deepspeed train.py", "install deepspeed, or activate the environment that has it"),
        ("pyhton train.py", "did you mean python?"),
        ("torch-run train.py", "did you mean torchrun?"),
        ("uv sync", "write `holdfast run uv run …`"),
        ("accelerate config", "write `holdfast run accelerate launch …`"),
        ("/bin/sh train.py", "/bin/sh is a program, not a Python script"),
        ("gone", "its first line names /gone/python, which does not exist"),
    ],
)
def test_everything_else_is_reported_what_to_write(folder: Path, words: str, says: str):
    put(folder / "train.sh", "#!/bin/sh\n")
    put(folder / "gone", "#!/gone/python\n")
    (folder / "python").write_text("")
    with pytest.raises(UsageError) as raised:
        read_command(words.split())
    assert says in str(raised.value)


@pytest.mark.parametrize("option", ["-I", "-E", "-S", "-uI", "-OE"])
@pytest.mark.parametrize("before", ["python", "uv run python", "poetry run python"])
def test_options_that_keep_holdfast_out(folder: Path, option: str, before: str):
    for launcher in ("uv", "poetry"):
        put(folder / "bin" / launcher, "#!/bin/sh\n")
    reported = line(read_command([*before.split(), option, "train.py", "-I"]))
    assert f"python -{option[-1]} " in reported and f"leave -{option[-1]} out" in reported
    assert reported.startswith("holdfast: unguarded: ") and "\n" not in reported
    assert not keeps_out(read_command([*before.split(), "-u", "train.py", option]))


@pytest.mark.parametrize(
    ("version", "missing", "says"),
    [
        ("3.9.18", "torch numpy", "is Python 3.9.18, holdfast needs 3.11 or newer"),
        ("2.7.18", "", "is Python 2.7.18, holdfast needs 3.11 or newer"),
        ("3.12.1", "torch numpy psutil", "has no torch; the command runs without holdfast"),
        ("3.11.0", "psutil", "has no psutil; the command runs without holdfast"),
        ("3.13.0", "", ""),
        ("nonsense", "", ""),
    ],
)
@pytest.mark.parametrize("how", ["python", "script", "launcher"])
def test_another_interpreter_is_asked(
    folder: Path, version: str, missing: str, says: str, how: str
):
    other = interpreter_that_answers(folder / "bin" / "python3.9", version, missing)
    put(folder / "train", f"#!{other}\n")
    put(folder / "bin" / "torchrun", f"#!{other}\n")
    words = {"python": f"{other} train.py", "script": "./train", "launcher": "torchrun train.py"}
    reported = line(read_command(words[how].split()))
    assert says in reported and bool(reported) == bool(says)
    assert not says or (reported.startswith("holdfast: unguarded: ") and str(other) in reported)


@pytest.mark.parametrize(
    ("words", "better"),
    [
        ("{other} train.py --epochs 3", "`holdfast run train.py …`"),
        ("{other} -m pkg.train", "`holdfast run -m pkg.train`"),
        ("{other} -u train.py", f"`holdfast run {sys.executable} -u train.py`"),
        ("./train --epochs 3", f"`holdfast run {sys.executable} ./train --epochs 3`"),
        ("torchrun train.py", ""),
    ],
)
def test_holdfast_called_by_its_path_names_the_command_for_its_own_environment(
    folder: Path, words: str, better: str
):
    """Its environment has torch and was not activated: nothing is to be installed elsewhere."""
    other = interpreter_that_answers(folder / "bin" / "python3.9", "3.12.1", "torch")
    put(folder / "train", f"#!{other}\n")
    put(folder / "bin" / "torchrun", f"#!{other}\n")
    reported = line(read_command(words.format(other=other).split()))
    assert better in reported and "install" not in reported
    assert f"activate its environment: source {sys.prefix}/bin/activate" in reported


def test_an_environment_that_lacks_torch_itself_sends_nobody_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    other = interpreter_that_answers(folder / "bin" / "python3.9", "3.12.1", "torch")
    monkeypatch.setattr(interpreter, "NEEDED", ("torch", "no_such_module"))
    reported = line(read_command([str(other), "train.py"]))
    assert reported.endswith("; to guard it, install holdfast in that environment")


def test_an_interpreter_that_does_not_answer_is_started_all_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """What is wrong with it, it says itself."""
    monkeypatch.setattr(interpreter, "_PATIENCE", 0.2)
    for text in ("#!/bin/sh\nsleep 5\n", "#!/bin/sh\nexit 3\n", "\0"):
        read = read_command([str(put(folder / "bin" / "python3.8", text)), "train.py"])
        assert keeps_out(read) is None


def test_our_own_interpreter_by_any_name(folder: Path):
    assert is_ours("python") and is_ours(sys.executable) and is_ours("python3")
    (folder / "bin" / "python3.10").symlink_to(Path(sys.executable).resolve())
    # The same file, but of another environment.
    assert not is_ours("python3.10") and not is_ours("python3.99")


def test_the_question_runs_on_this_python():
    read = ScriptCommand(words=(), argv=(), name="", interpreter=sys.executable)
    assert interpreter._asked(sys.executable) == ("", "") and keeps_out(read) is None

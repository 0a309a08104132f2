"""Bad input gets one line that helps, exit code 2 and no traceback, in every command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import Bench, Outcome


def prepare(folder: Path) -> None:
    """Everything a mistaken command line could point at."""
    (folder / "train.py").write_text("print('this must not run')\n")
    (folder / "folder").mkdir()
    (folder / "photo.py").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe")
    (folder / "nul.py").write_bytes(b"print(1)\x00\n")
    (folder / "letter.txt").write_text("Dear reader,\nthis is no program.\n")
    (folder / "latin.py").write_bytes("# é\nprint('é')\n".encode("latin-1"))
    (folder / "broken.yaml").write_text("guard: [fused\n")
    (folder / "unknown.yaml").write_text("guard:\n  fusd: true\n")
    (folder / "wrong.yaml").write_text("guard:\n  fused: perhaps\n")
    (folder / "list.yaml").write_text("- 1\n- 2\n")
    (folder / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (folder / "file").write_text("")
    for name, meta in (
        ("no_json", None),
        ("empty_json", b""),
        ("half_json", b'{"format": 1, "created'),
        ("list_json", b"[1, 2]"),
        ("binary_json", b"\xff\x00\xfe"),
        ("future", b'{"format": 99}'),
    ):
        (folder / name).mkdir()
        if meta is not None:
            (folder / name / "run.json").write_bytes(meta)
    good = b'{"format": 1, "created": "2026-01-01T00:00:00+00:00", "status": "running"}'
    for name, file, content in (
        ("bad_table", "steps.r0.000000.bin", b"garbage" * 1000),
        ("short_table", "steps.r0.000000.bin", b"{"),
        ("bad_ring", "ring.r0.bin", b"\xff" * 20000),
        ("json_is_folder", "run.json/x", b""),
    ):
        (folder / name / file).parent.mkdir(parents=True)
        (folder / name / file).write_bytes(content)
        if file != "run.json/x":
            (folder / name / "run.json").write_bytes(good)


# Words of the command line, and what the one line must say.
RUN = {
    "no script": (["run"], "no script was given"),
    "no such script": (["run", "trian.py"], "did you mean train.py"),
    "nothing like it": (["run", "xyzzy.py"], "no such script: xyzzy.py"),
    "folder": (["run", "folder"], "folder"),
    "binary": (["run", "photo.py"], "photo.py is not Python"),
    "nul bytes": (["run", "nul.py"], "nul.py is not Python"),
    "text": (["run", "letter.txt"], "letter.txt is not Python"),
    "wrong encoding": (["run", "latin.py"], "latin.py is not Python"),
    "unknown option": (["run", "--no-fusd", "train.py"], "did you mean '--no-fused'"),
    "option with value": (["run", "--quiet=yes", "train.py"], "--quiet"),
    "unknown setting": (["run", "--set", "guard.fusd=1", "train.py"], "guard.fused"),
    "unknown section": (["run", "--set", "gaurd.fused=1", "train.py"], "guard"),
    "setting without value": (["run", "--set", "guard.fused", "train.py"], "no value"),
    "wrong type": (["run", "--set", "guard.fused=perhaps", "train.py"], "guard.fused"),
    "out of bounds": (["run", "--set", "run.ring_mib=0", "train.py"], "run.ring_mib"),
    "missing value at the end": (["run", "--run-dir"], "--run-dir"),
    "missing value of --set": (["run", "--set"], "--set"),
    "missing module": (["run", "-m"], "-m needs a module"),
    "no such module": (["run", "-m", "no_such_module_xyz"], "no_such_module_xyz"),
    "no such config": (["run", "--config", "none.yaml", "train.py"], "none.yaml"),
    "config is a folder": (["run", "--config", "folder", "train.py"], "folder"),
    "broken yaml": (["run", "--config", "broken.yaml", "train.py"], "broken.yaml"),
    "binary yaml": (["run", "--config", "binary.yaml", "train.py"], "binary.yaml"),
    "yaml list": (["run", "--config", "list.yaml", "train.py"], "list.yaml"),
    "unknown key in yaml": (["run", "--config", "unknown.yaml", "train.py"], "fused"),
    "wrong type in yaml": (["run", "--config", "wrong.yaml", "train.py"], "wrong.yaml"),
    "run folder below a file": (["run", "--run-dir", "file/run", "train.py"], "file/run"),
    "run folder is a file": (["run", "--run-dir", "file", "train.py"], "file"),
    "name too long": (["run", "--run-dir", "x" * 300, "train.py"], "run folder"),
    "run folder is taken": (["run", "--run-dir", "future", "train.py"], "future"),
    "root below a file": (["run", "--set", "run.root=file/runs", "train.py"], "file/runs"),
    "script below a file": (["run", "file/train.py"], "file/train.py"),
    "name of a script too long": (["run", "x" * 5000], "x"),
}
OTHERS = {
    "unknown command": (["reprot"], "did you mean 'report'"),
    "a script as command": (["train.py"], "holdfast run train.py"),
    "option before command": (["--frobnicate"], "--frobnicate"),
    "report: none": (["report"], "no run found under runs"),
    "report: too many": (["report", "a", "b"], "b"),
    "report: format": (["report", "--format", "xml"], "xml"),
    "report: option": (["report", "--formt", "json"], "--format"),
    "report: no value": (["report", "--output"], "--output"),
    "check: nothing": (["check"], "no run found under runs"),
    "check: select": (["check", "future", "--select", "XYZ9"], ""),
    "check: option": (["check", "--selct", "NUM", "future"], "--select"),
    "explain: code": (["explain", "NUM01"], "NUM001"),
    "explain: second code": (["explain", "NUM001", "NUM02"], "NUM002"),
    "explain: words": (["explain", "purple", "elephants"], "lists all of them"),
    "open: no run": (["open", "nowhere"], "nowhere"),
    "completion: shell": (["completion", "tcsh"], "tcsh"),
    "report: form": (["report", "--format", "pdf"], "sarif"),
    "demo: option": (["demo", "--epochs", "3"], "--epochs"),
    "demo: run folder": (["demo", "--run-dir", "file"], "file"),
}
FOLDERS = (
    "nowhere", "file", "folder", "no_json", "empty_json", "half_json", "list_json", "binary_json",
    "future", "bad_table", "short_table", "bad_ring", "json_is_folder", "",
)  # fmt: skip


# One python imports all that the commands need; a fork of it carries out each command line.
COMMANDS = """
import json, os, sys, tempfile
from holdfast.cli import main
main(["check", "nowhere"]), main(["report", "future"]), main(["run", "--set", "x=1", "train.py"])
for words in json.load(sys.stdin):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = main(words)
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        told = [os.pread(file.fileno(), 1 << 16, 0).decode() for file in (out, err)]
    print(json.dumps([words, code, *told]), flush=True)
"""


Complain = Callable[[list[str]], str]


@pytest.fixture(scope="module")
def complain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Complain]:
    """Asks for the one line; all command lines are carried out ahead."""
    bench = Bench(tmp_path_factory.mktemp("bad"))
    prepare(bench.folder)
    before = sorted(bench.folder.rglob("*"))
    mistakes = [words for words, _ in (RUN | OTHERS).values()]
    mistakes += [[command, folder] for folder in FOLDERS for command in ("report", "check")]
    asked = bench.plain("-c", COMMANDS, given=json.dumps(mistakes).encode())
    assert asked.code == 0, asked.reported
    outcomes = {
        repr(words): Outcome(code, out.encode(), err.encode())
        for words, code, out, err in map(json.loads, asked.lines)
    }

    def ask(words: list[str]) -> str:
        seen = outcomes[repr(words)]
        assert seen.code == 2, seen
        assert seen.out == b""
        assert seen.reported.startswith("holdfast: error: ") and seen.reported.endswith("\n")
        assert seen.reported.count("\n") == 1, seen.reported
        assert "Traceback" not in seen.reported
        return seen.reported

    yield ask
    bench.close()
    assert sorted(bench.folder.rglob("*")) == before, "clutter"


@pytest.mark.parametrize("mistake", RUN)
def test_run(complain: Complain, mistake: str):
    words, says = RUN[mistake]
    assert says in complain(words)


@pytest.mark.parametrize("mistake", OTHERS)
def test_other_commands(complain: Complain, mistake: str):
    words, says = OTHERS[mistake]
    assert says in complain(words)


@pytest.mark.parametrize("command", ["report", "check"])
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_that_is_no_run(complain: Complain, command: str, folder: str):
    assert folder in complain([command, folder])


def test_a_report_that_cannot_be_written(bench: Bench):
    (bench.folder / "runs" / "one").mkdir(parents=True)
    good = '{"format": 1, "created": "2026-01-01T00:00:00+00:00", "status": "finished"}'
    (bench.folder / "runs" / "one" / "run.json").write_text(good)
    for where in ("nowhere/report.txt", "runs"):
        seen = bench.cli("report", "--output", where)
        assert (seen.code, seen.out) == (2, b"")
        assert seen.reported.startswith("holdfast: error: ") and seen.reported.count("\n") == 1
        assert where in seen.reported


def test_a_folder_that_may_not_be_read(bench: Bench):
    """Root may read everything: there the permission is no obstacle and the run is empty."""
    run = bench.folder / "secret"
    run.mkdir(mode=0)
    seen = bench.cli("report", "secret")
    assert seen.code == 2 and seen.reported.count("\n") == 1
    run.chmod(0o755)


def test_the_script_never_started(bench: Bench):
    """A mistake is found before the script runs, not after."""
    script = bench.write("open('ran', 'w').close()")
    for words in (
        ["run", "--set", "guard.fusd=1", script],
        ["run", "--run-dir", os.path.join(script, "x"), script],
        ["run", "--frobnicate", script],
    ):
        assert bench.cli(*words).code == 2
    assert not (bench.folder / "ran").exists()
    assert bench.cli("run", script).code == 0
    assert (bench.folder / "ran").exists()

"""``holdfast run`` in front of the commands that people use.

torchrun and accelerate are the real ones. deepspeed, uv and poetry are not installed here: programs
of their names stand in for them, which start python as they do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from .conftest import TRAIN, Bench

BIN = str(Path(sys.executable).parent)
SCRIPT = TRAIN + "train(8, bad=[5])\nprint('trained')\n"
RANK = "import os\n" + TRAIN + "train(8, bad=[5])\nprint('rank', os.environ['RANK'], flush=True)\n"

# uv is no python: it runs what follows, or python for a script.
UV = """#!/bin/sh
shift
case "$1" in
    *.py|-m) exec python "$@" ;;
    *) exec "$@" ;;
esac
"""
# poetry is a python of an environment of its own, and becomes the command.
POETRY = f"""#!{sys.executable}
import os, sys
print("entered:", any("Torch" in type(finder).__name__ for finder in sys.meta_path))
sys.stdout.flush()
os.execvp(sys.argv[2], sys.argv[2:])
"""
# deepspeed starts a python that starts the ranks and waits for them.
DEEPSPEED = f"""#!{sys.executable}
import os, subprocess, sys
import torch
ranks = [
    subprocess.Popen(
        [sys.executable, "-u", sys.argv[1], f"--local_rank={{rank}}"],
        env=dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2"),
    )
    for rank in range(2)
]
codes = [rank.wait() for rank in ranks]
if any(codes):
    raise subprocess.CalledProcessError(max(codes), sys.argv[1])
"""


@pytest.fixture
def path(bench: Bench) -> Mapping[str, str]:
    """The environment with stand-ins in front of the path, and an activated environment."""
    folder = bench.folder / "bin"
    folder.mkdir()
    for name, text in (("uv", UV), ("poetry", POETRY), ("deepspeed", DEEPSPEED)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    home = str(bench.folder / "home")
    return {"PATH": f"{folder}:{BIN}:{os.environ['PATH']}", "HF_HOME": home}


def test_python_with_its_options(bench: Bench, path: Mapping[str, str]):
    main = bench.folder / bench.write(
        "import sys\n" + SCRIPT + "print(sys.argv, sys.flags.dev_mode, __name__)\n",
        "pkg/__main__.py",
    )
    words = ["python3", "-u", "-X", "dev", "-W", "ignore", "-m", "pkg", "--quiet", "-I"]
    seen = bench.guarded(*words, env=path)
    assert (seen.code, seen.err) == (0, b"")
    assert seen.lines == ["trained", f"{[str(main), '--quiet', '-I']} True __main__"]
    assert bench.record.skipped() == [5]
    assert bench.record.run.meta["command"] == words
    assert bench.record.run.meta["script"] == "pkg"


def test_an_interpreter_that_cannot_be_entered(bench: Bench, path: Mapping[str, str]):
    """One line, and the command goes on: its output, its exit code, what it reads."""
    script = bench.write("import sys\nprint(sys.stdin.read(), sys.argv)\nsys.exit(7)\n")
    plain = bench.plain("-I", script, "x", given=b"read", env=path)
    seen = bench.guarded("python", "-I", script, "x", given=b"read", env=path)
    assert (seen.code, seen.out) == (plain.code, plain.out) == (7, b"read ['script.py', 'x']\n")
    assert seen.reported == (
        "holdfast: unguarded: python -I ignores PYTHONPATH, by which holdfast gets in; "
        "the command runs without holdfast; to guard it, leave -I out\n"
    )
    assert not bench.path.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "python train.py",
        "uv run train.py",
        "uv run python -u train.py",
        "poetry run python train.py",
        "accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision no "
        "--dynamo_backend no train.py",
        "./train",
        "-c",
        "-",
        "python -",
    ],
)
def test_the_python_that_trains_is_guarded(bench: Bench, path: Mapping[str, str], command: str):
    bench.write(SCRIPT, "train.py")
    (bench.folder / "train").write_text(f"#!/usr/bin/env python3\n{SCRIPT}")
    (bench.folder / "train").chmod(0o755)
    words = [*command.split(), *([SCRIPT] if command == "-c" else [])]
    given = SCRIPT.encode() if words[-1] == "-" else None
    seen = bench.guarded(*words, env=path, given=given)
    assert seen.code == 0, seen.reported
    assert seen.lines[-1:] == ["trained"] and "entered: True" not in seen.text
    assert bench.record.lanes == ["r0"] and bench.record.skipped() == [5]


@pytest.mark.slow
@pytest.mark.ranks(2)
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("launcher", ["torchrun --nproc-per-node 2 --standalone", "deepspeed"])
def test_ranks_are_guarded_and_their_launcher_is_not(
    bench: Bench, path: Mapping[str, str], launcher: str, crashes: bool
):
    script = bench.write(RANK + ("raise ValueError('mine')\n" if crashes else ""), "train.py")
    seen = bench.guarded(*launcher.split(), script, env=path)
    assert (seen.code == 0) is not crashes, seen.reported
    assert sorted(line for line in seen.lines if line.startswith("rank")) == ["rank 0", "rank 1"]
    # That the launcher ends with an error of its own is not told as a crash of the training.
    assert bench.record.lanes == ["r0", "r1"]
    for lane in bench.record.lanes:
        assert bench.record.skipped(lane) == [5]
        assert ("RUN001" in bench.record.codes(lane)) is crashes


@pytest.mark.slow
def test_an_environment_without_what_holdfast_needs(bench: Bench, path: Mapping[str, str]):
    """Another environment that has torch and no psutil: found out at ``import torch``."""
    bench.write("raise ModuleNotFoundError('no psutil', name='psutil')\n", "psutil.py")
    bench.write(SCRIPT, "train.py")
    seen = bench.guarded("uv", "run", "train.py", env=path)
    assert (seen.code, seen.text) == (0, "trained\n")
    unguarded, nothing = seen.reported.splitlines()
    assert unguarded.startswith("holdfast: unguarded: ") and "has no psutil;" in unguarded
    assert nothing.startswith("holdfast: nothing was recorded: no python that uv started trained")
    assert not bench.path.exists()

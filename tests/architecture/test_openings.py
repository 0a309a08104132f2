"""What reads folders that may come from anybody opens their files through ``regular_files``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from .sources import nodes

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "holdfast"

# Rooms and files that read folders of runs, checkpoints, scans and settings.
READING = [
    "run", "checkpoint", "config", "report", "detectors", "policy.py", "integrations", "cli",
    "training/scanning.py", "training/scan_table.py", "training/resolving.py",
    "training/resuming.py", "training/weights.py", "training/recorded_settings.py",
    "resume/resumed_run.py",
]  # fmt: skip

# What they open besides: the system's own files, the user's script and database, files of the
# package, new files (O_EXCL), and what the user named on the command line to be written.
OTHERS = {
    "run/host_memory.py": 3,
    "run/host_cores.py": 1,
    "run/process.py": 2,
    "run/resumption.py": 1,
    "run/durable.py": 2,
    "run/folder.py": 1,
    "report/html/document.py": 1,
    "integrations/mlflow.py": 1,
    "cli/__init__.py": 2,
    "cli/_call.py": 1,
    "cli/_output.py": 1,
    "checkpoint/sharded/export.py": 1,
}
_READS = {"read_text", "read_bytes", "fromfile", "memmap", "genfromtxt", "loadtxt", "open_memmap"}
_MODULES = {"os", "io", "gzip", "tokenize", "codecs", "zipfile", "bz2", "lzma", "mmap"}
_LOADERS = {"np.load", "numpy.load", "torch.load", "sqlite3.connect"}


def openings(source: str) -> Iterator[tuple[int, str]]:
    """Where a file is opened otherwise, by line: calls without an ``opener`` that checks."""
    for node in nodes(source):
        if not isinstance(node, ast.Call) or any(word.arg == "opener" for word in node.keywords):
            continue
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        if (
            called == "open"
            or called in _LOADERS
            or (owner and name in _READS)
            or (owner and name == "open" and (owner in _MODULES or _is_path_open(node)))
        ):
            yield node.lineno, called


def _is_path_open(call: ast.Call) -> bool:
    """``path.open("rb")`` and ``path.open()``, but no ``Run.open(path)`` or ``page.open(url)``."""
    first = call.args[0] if call.args else None
    mode = isinstance(first, ast.Constant) or any(word.arg == "mode" for word in call.keywords)
    return mode or not call.args


def reading_files() -> list[Path]:
    found: list[Path] = []
    for name in READING:
        path = SRC / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
    return found


def test_nobody_opens_a_file_of_a_folder_otherwise():
    found = {
        str(path.relative_to(SRC)): lines
        for path in reading_files()
        if (lines := list(openings(path.read_text())))
    }
    more = {name: lines for name, lines in found.items() if len(lines) != OTHERS.get(name, 0)}
    assert not more, f"use regular_files.open_regular, or say in OTHERS why not: {more}"
    assert set(OTHERS) == set(found)


@pytest.mark.parametrize(
    "source",
    [
        "open(path)", "path.open('rb')", "path.open()", "path.open(mode='r')", "os.open(path, 0)",
        "path.read_text()", "(folder / name).read_bytes()", "np.fromfile(path)", "np.load(path)",
        "tokenize.open(path)", "torch.load(path)",
    ],
)  # fmt: skip
def test_an_opening_is_seen(source: str):
    assert list(openings(source))


@pytest.mark.parametrize(
    "source",
    ["Run.open(path)", "open_regular(path)", "open(path, 'w', opener=opener)", "page.open(url)"],
)
def test_the_door_itself_is_open(source: str):
    assert not list(openings(source))

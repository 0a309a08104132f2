"""``benchmarks/mutations.py``: every fault can be put in, and what becomes of it is told."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from mutating.catalogue import ALL, Mutation
from mutating.copying import Copy, MutationError, mutated

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutation", ALL, ids=lambda one: one.name)
def test_a_fault_stands_for_one_place_in_the_sources_and_for_tests_that_exist(
    mutation: Mutation,
) -> None:
    before = (ROOT / mutation.file).read_text(encoding="utf-8")
    after = mutated(before, mutation)
    assert after != before
    compile(after, mutation.file, "exec")
    assert mutation.tests and all((ROOT / test).is_file() for test in mutation.tests)


def test_a_text_that_is_gone_or_there_twice_is_an_error() -> None:
    with pytest.raises(MutationError, match="is there 0 times"):
        mutated("", ALL[0])
    with pytest.raises(MutationError, match="is there 2 times"):
        mutated(2 * ALL[0].old, ALL[0])


FAULT = Mutation(
    theme="sums",
    name="two is three",
    file="src/holdfast/__init__.py",
    old="TWO = 2",
    new="TWO = 3",
    tests=("tests/test_two.py",),
)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    """Of a repository of a package, a test and a file that git does not know."""
    root = tmp_path / "root"
    texts = {
        "src/holdfast/__init__.py": "TWO = 2\nONE = 1\n",
        "tests/test_two.py": "import holdfast\ndef test_two():\n    assert holdfast.TWO == 2\n",
        "unknown.py": "",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / ".gitignore").write_text("unknown.py\n")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=root, check=True)
    (tmp_path / "copy").mkdir()
    return Copy(root, tmp_path / "copy", {"holdfast": "src"})


@pytest.mark.slow
def test_a_fault_is_caught_survives_or_cannot_be_reported_and_is_taken_out_again(
    copy: Copy,
) -> None:
    assert not (copy.folder / "unknown.py").exists()
    assert copy.failing(FAULT.tests) == []
    assert copy.outcome(FAULT).caught_by == "tests/test_two.py::test_two"
    other = dataclasses.replace(FAULT, old="ONE = 1", new="ONE = 5")
    assert copy.outcome(other).caught_by is None
    with pytest.raises(MutationError, match="told of no test"):
        copy.outcome(dataclasses.replace(FAULT, new="TWO ="))
    assert copy.failing(FAULT.tests) == []


@pytest.mark.slow
def test_a_selection_is_listed_and_an_empty_one_is_one_line() -> None:
    def called(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(ROOT / "benchmarks" / "mutations.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    listed = called("--list", "--only", "loss scale")
    assert listed.returncode == 0
    assert all(line.startswith("loss scale") for line in listed.stdout.splitlines())
    wrong = called("--only", "nothing like this")
    assert wrong.returncode == 2 and len(wrong.stderr.splitlines()) == 1

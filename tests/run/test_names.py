from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import RunFolderError
from holdfast.run import Run, find_run, run_folders, run_path

NAMES = ("2026-11-15-1204-train", "2026-11-15-1204-train-2", "2026-11-16-0900-eval", "mine")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(NAMES):
        Run.create(f"runs/{name}", {"created": f"2026-11-16T10:0{number}:00+00:00"})
    (tmp_path / "runs" / "foreign").mkdir()
    Run.create("runs/scan/lr=0.1", {})
    return Path("runs")


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("last", "mine"),
        ("latest", "mine"),
        ("mine", "mine"),
        ("m", "mine"),
        ("2026-11-16", "2026-11-16-0900-eval"),
        ("2026-11-15-1204-train", "2026-11-15-1204-train"),
        ("runs/2026-11-16", "2026-11-16-0900-eval"),
        ("runs/mine/", "mine"),
        ("scan/lr=0.1", "scan/lr=0.1"),
        ("scan/lr", "scan/lr=0.1"),
    ],
)
def test_found(root: Path, word: str, name: str) -> None:
    assert run_path(word, root) == root / name


def test_paths_go_first(root: Path) -> None:
    Run.create("last", {})
    Path("2026-11-16").mkdir()
    assert run_path("last", root) == Path("last")
    assert run_path("2026-11-16", root) == Path("2026-11-16")
    with pytest.raises(RunFolderError, match="not a run folder"):
        find_run("2026-11-16", root)


def test_an_absolute_path_may_be_a_beginning_too(root: Path) -> None:
    assert run_path(str(root.resolve() / "2026-11-16"), "nowhere").name == "2026-11-16-0900-eval"


def test_no_word_is_the_newest(root: Path) -> None:
    assert find_run(None, root).path == root / "mine"


def test_several_are_named(root: Path) -> None:
    with pytest.raises(RunFolderError) as caught:
        run_path("2026", root)
    reported = str(caught.value)
    assert all(name in reported for name in NAMES[:3]) and "mine" not in reported
    assert "'2026' is the beginning of 3 runs in runs" in reported and "\n" not in reported


def test_very_many_are_counted(root: Path) -> None:
    for number in range(20):
        Run.create(root / f"x{number:02}", {})
    with pytest.raises(RunFolderError, match=r"20 runs in runs: x00, .*, x05 and 14 more; write"):
        run_path("x", root)


@pytest.mark.parametrize("word", ["2026-11-16-0090-eval", "runs/2026-11-16-0090-eval"])
def test_an_unknown_name_gets_the_nearest(root: Path, word: str) -> None:
    with pytest.raises(RunFolderError, match=r"does not exist.*'2026-11-16-0900-eval'\?"):
        run_path(word, root)


@pytest.mark.parametrize("word", ["zzz", "no/such/thing", "/no/such/thing", "foreign/x", ""])
def test_nothing_like_it(root: Path, word: str) -> None:
    with pytest.raises(RunFolderError, match="holdfast runs"):
        find_run(word or "qqq", root)


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="does not exist"):
        run_path("x", tmp_path / "none")
    with pytest.raises(RunFolderError, match="no run found"):
        run_path("last", tmp_path / "none")
    assert list(run_folders(tmp_path / "none")) == []


def test_a_damaged_run_has_a_name_and_a_foreign_folder_none(root: Path) -> None:
    (root / "mine" / "run.json").write_text("{")
    assert [path.name for path in run_folders(root)] == list(NAMES)
    with pytest.raises(RunFolderError, match="corrupt"):
        find_run("mi", root)

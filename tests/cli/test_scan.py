"""``holdfast train --scan``: what is refused before anything is trained, and a whole scan."""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.cli import main
from holdfast.training import scanning

RECIPE = textwrap.dedent(
    """
    import dataclasses, torch
    from holdfast import Section, bounded
    from holdfast.training import Recipe, Task, TrainSettings

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings(Section):
        width: int = bounded(4, 1)
        train: TrainSettings = TrainSettings(steps=4, epochs=9)

    def build(settings, place):
        if settings.width == 5:
            raise RuntimeError("five is no width")
        torch.set_num_threads(1)
        x = torch.randn(64, 3)
        data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        w = settings.width
        model = torch.nn.Sequential(torch.nn.Linear(3, w), torch.nn.Linear(w, 1))
        loss = lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
        return Task(model=model, loss=loss, train=data, validation=data)

    RECIPE = Recipe(name="tiny", summary="a line", settings=Settings, build=build)
    """
)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delitem(sys.modules, "tiny_scanned", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("tiny_scanned.py").write_text(RECIPE)


def scan(*words: str) -> int:
    return main(["train", "tiny_scanned.py", "--platform", "none", *words])


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--scan", "width=4,0"], "width"),
        (["--scan", "widht=4"], "did you mean 'width'?"),
        (["--scan", "width=4", "--jobs", "0"], "at least one"),
        (["--scan", "width=4", "--resume", "x"], "about one run"),
        (["--jobs", "2"], "say what with --scan"),
        (["--scan", "width=4", "--scan-task", "1"], "combinations 0 to 0"),
        (["--scan-table", "nowhere"], "holds no scan"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_trained(words, reported, capsys):
    assert scan(*words) == 2
    err = capsys.readouterr().err
    assert reported in err and err.count("\n") == 1
    assert {*os.listdir()} - {"__pycache__"} == {"tiny_scanned.py"}


def test_ranks_are_refused(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    assert scan("--scan", "width=4") == 2
    assert "without torchrun" in capsys.readouterr().err


def test_a_file_for_slurm_names_what_runs_one_combination(monkeypatch, capsys):
    words = ["--set", "train.steps=3", "--scan", "width=2,3", "--run-dir", "out"]
    assert scan(*words, "--scan-slurm", "scan.sbatch") == 0
    assert "sbatch scan.sbatch" in capsys.readouterr().out
    assert "--array=0-1" in Path("scan.sbatch").read_text()
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words))
    scan(*words, "--scan-task", "1")
    assert started[0][-4:] == ["--set", "width=3", "--run-dir", "out/width=3"]


def test_the_table_has_settings_to_the_left_and_numbers_to_the_right(capsys, monkeypatch):
    def row(rate: object, best: float, steps: int, why: str) -> dict[str, object]:
        numbers = {"best": best, "best_step": steps // 2, "steps": steps, "seconds": 1.25}
        return {"train.lr": rate, **numbers, "skipped": 0, "why": why}

    one = SimpleNamespace(
        folder=Path("out"),
        metric="loss",
        combinations=[SimpleNamespace(values={"train.lr": 0.1})],
        write=lambda: [row(0.1, 0.5, 400, "done"), row("a\x1bb", math.nan, 0, "not started")],
    )
    monkeypatch.setattr(scanning.FolderScan, "open", lambda folder: one)
    assert main(["train", "--scan-table", "out"]) == 0
    folder, head, *rows = capsys.readouterr().out.splitlines()
    assert folder == "out"
    assert head == "lr          best loss  at step  steps  seconds  skipped  end"
    assert rows[0] == "0.1               0.5      200    400      1.2        0  done"
    assert "\x1b" not in rows[1] and rows[1].split()[1:4] == ["-", "-", "0"]


@pytest.mark.slow
def test_a_whole_scan_and_its_table(capfd):
    """One combination cannot be built: the others are trained, and it is tried again later."""
    words = ["--scan", "width=3,5", "--run-dir", "out", "--jobs", "2"]
    assert scan(*words) == 1
    table = capfd.readouterr().out
    assert "4 steps are done" in table and "not started" in table
    assert "five is no width" in Path("out/width=5.log").read_text()
    runs = json.loads(Path("out/scan.json").read_text())["runs"]
    assert [(row["run"], row["state"], row["steps"]) for row in runs] == [
        ("width=3", "finished", 4),
        ("width=5", "new", 0),
    ]
    assert main(["train", "--scan-table", "out"]) == 0
    assert capfd.readouterr().out == table

from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.cli import main


@pytest.fixture
def sick(make_run, make_rows):
    return make_run(make_rows(20, loss={5: np.nan}, loss_bad={5: 1}, skipped={5: 1}))


def test_text(sick, capsys):
    assert main(["report", str(sick.path)]) == 0
    told = capsys.readouterr().out
    assert "FINISHED" in told and "NUM001" in told and "\x1b" not in told


def test_json(sick, capsys):
    assert main(["report", str(sick.path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "NUM001"


@pytest.mark.parametrize("form", ["text", "json"])
def test_to_a_file(sick, tmp_path, capsys, form):
    target = tmp_path / "out.txt"
    assert main(["report", str(sick.path), "--format", form, "--output", str(target)]) == 0
    assert "NUM001" in target.read_text()
    assert capsys.readouterr().out == ""


def test_the_newest_run_is_the_default(sick, tmp_path, monkeypatch, capsys):
    work = tmp_path / "work"
    (work / "runs").mkdir(parents=True)
    sick.path.rename(work / "runs" / "only")
    monkeypatch.chdir(work)
    assert main(["report"]) == 0
    assert "runs/only" in capsys.readouterr().out


def test_no_run_at_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    error = capsys.readouterr().err
    assert "no run found under runs" in error and error.count("\n") == 1


def test_a_file_that_cannot_be_written(sick, tmp_path, capsys):
    assert main(["report", str(sick.path), "--output", str(tmp_path)]) == 2
    assert "--output" in capsys.readouterr().err


def test_in_colour_on_a_terminal(sick, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    main(["report", str(sick.path)])
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["report", str(sick.path)])
    assert "\x1b[" not in capsys.readouterr().out


def damage_meta(path):
    (path / "run.json").write_text("{")


def damage_header(path):
    next(path.glob("steps*")).write_bytes(b"\0" * 9000)


def damage_nothing_left(path):
    for file in path.iterdir():
        file.unlink()


def damage_format(path):
    (path / "run.json").write_text('{"format": 99}')


@pytest.mark.parametrize("damage", [damage_meta, damage_header, damage_nothing_left, damage_format])
@pytest.mark.parametrize("command", ["report", "check"])
def test_a_corrupt_run_folder_is_one_line(sick, capsys, damage, command):
    damage(sick.path)
    assert main([command, str(sick.path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("holdfast: error: ") and error.count("\n") == 1
    assert str(sick.path) in error


@pytest.mark.parametrize("command", ["report", "check"])
def test_random_damage_never_ends_in_a_traceback(make_run, make_rows, capsys, command):
    rows = make_rows(30, loss={5: np.nan}, loss_bad={5: 1})
    noise = np.random.default_rng(0)
    for attempt in range(40):
        run = make_run(rows, name=f"run{attempt}")
        victim = sorted(run.path.iterdir())[int(noise.integers(len(list(run.path.iterdir()))))]
        data = bytearray(victim.read_bytes())
        for _ in range(int(noise.integers(1, 30))):
            data[int(noise.integers(min(len(data), 5000)))] = int(noise.integers(256))
        victim.write_bytes(data[: int(noise.integers(len(data))) + 1])
        assert main([command, str(run.path)]) in (0, 1, 2)
        error = capsys.readouterr().err
        assert "Traceback" not in error and error.count("\n") <= 1

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
    reported = capsys.readouterr().out
    assert "FINISHED" in reported and "NUM001" in reported and "\x1b" not in reported


def test_json(sick, capsys):
    assert main(["report", str(sick.path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "NUM001"


@pytest.mark.parametrize("form", ["text", "json", "html", "md"])
def test_to_a_file(sick, tmp_path, capsys, form):
    target = tmp_path / "out.txt"
    assert main(["report", str(sick.path), "--format", form, "--output", str(target)]) == 0
    assert "NUM001" in target.read_text()
    assert capsys.readouterr().out == ""


def test_html_goes_into_the_run_folder(sick, capsys):
    assert main(["report", str(sick.path), "--format", "html"]) == 0
    page = sick.path / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    assert page.read_text().startswith("<!doctype html>") and "NUM001" in page.read_text()


def test_html_to_a_file_leaves_the_run_folder_alone(sick, tmp_path):
    before = sorted(sick.path.iterdir())
    assert (
        main(["report", str(sick.path), "--format", "html", "--output", f"{tmp_path}/a.html"]) == 0
    )
    assert sorted(sick.path.iterdir()) == before


def test_markdown(sick, capsys):
    assert main(["report", str(sick.path), "--format", "md"]) == 0
    assert capsys.readouterr().out.startswith("# Finished with findings: `train.py`\n")


def test_a_run_folder_that_cannot_be_written(sick, capsys):
    (sick.path / "report.html").mkdir()
    assert main(["report", str(sick.path), "--format", "html"]) == 2
    error = capsys.readouterr().err
    assert "report.html" in error and "--output" in error and error.count("\n") == 1


@pytest.mark.parametrize("form", ["html", "md"])
def test_of_a_damaged_run_what_can_be_read(sick, capsys, form):
    damage_header(sick.path)
    assert main(["report", str(sick.path), "--format", form]) == 0
    seen = capsys.readouterr()
    assert seen.err.startswith("holdfast: r0: steps.r0") and seen.err.count("\n") == 1
    reported = seen.out if form == "md" else (sick.path / "report.html").read_text()
    assert "Part of the recording is damaged" in reported and "NUM001" in reported


@pytest.mark.parametrize("form", ["html", "md"])
@pytest.mark.parametrize("name", ["damage_meta", "damage_nothing_left", "damage_format"])
def test_a_folder_that_is_no_run_is_one_line(sick, capsys, form, name):
    globals()[name](sick.path)
    assert main(["report", str(sick.path), "--format", form]) == 2
    assert capsys.readouterr().err.count("\n") == 1


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


@pytest.mark.parametrize(
    "command",
    [["report"], ["check"], ["report", "--format", "html"], ["report", "--format", "md"]],
    ids=" ".join,
)
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
        assert main([command[0], str(run.path), *command[1:]]) in (0, 1, 2)
        error = capsys.readouterr().err
        assert "Traceback" not in error and error.count("\n") <= 1

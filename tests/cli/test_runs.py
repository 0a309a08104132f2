from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.run import ProcessMark, Run
from holdfast.run.life import PROCESS


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path("runs")


@pytest.fixture
def made(make_run, root):
    """Makes a run that started so many days ago."""

    def make_one(name: str, days: float = 0.0, rows=None, **given) -> Run:
        created = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        meta = {"created": created} | given.pop("meta", {})
        make_run(rows, name=f"runs/{name}", meta=meta, **given)
        return Run.open(root / name)

    return make_one


def save_checkpoint(run: Run, step: int, size: int = 3000) -> Path:
    """Both files of a checkpoint, whole as far as its record goes."""
    from holdfast.checkpoint.record import encode_record, file_name

    folder = run.path / "checkpoints"
    folder.mkdir(exist_ok=True)
    data = folder / file_name(step)
    data.write_bytes(bytes(size))
    fields = {
        "format": 1, "step": step, "rank": 0, "file": data.name, "time": 0.0,
        "sha256": hashlib.sha256(bytes(size)).hexdigest(),
        "bytes": size, "tensors": {}, "good": False,
    }  # fmt: skip
    data.with_suffix(".json").write_bytes(encode_record(fields))
    return data


def listed(capsys, *words: str):
    assert main(["runs", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table(made, make_rows, capsys):
    made("old", 3, exit_code=-9)
    made("sick", 2, make_rows(20, loss_bad={5: 1}))
    save_checkpoint(made("new", 0.1), 1200)
    save_checkpoint(Run.open("runs/new"), 400)
    lines = [line.split() for line in listed(capsys)]
    assert lines[0] == ["NAME", "STATUS", "STEPS", "VERDICT", "CHECKPOINT", "SIZE", "AGE"]
    assert lines[1][:7] == ["new", "finished", "20", "no", "findings", "step", "1,200"]
    assert lines[2][:4] == ["sick", "finished", "20", "NUM001"] and lines[2][-2:] == ["2", "d"]
    assert lines[3][:7] == ["old", "killed", "by", "SIGKILL", "20", "-", "-"]
    assert " ".join(lines[4]).startswith("3 runs in runs, ")


def test_a_damaged_checkpoint_is_passed_over(made, capsys):
    run = made("mine")
    save_checkpoint(run, 7)
    save_checkpoint(run, 1200).with_suffix(".json").write_text("{")
    save_checkpoint(run, 900).unlink()
    assert " step 7 " in listed(capsys)[1]


def test_json_is_for_programs(made, capsys):
    for number in range(25):
        made(f"r{number:02}", number)
    data = save_checkpoint(Run.open("runs/r00"), 7)
    assert main(["runs", "--format", "json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert [run["name"] for run in reported["runs"]] == [f"r{number:02}" for number in range(25)]
    first = reported["runs"][0]
    assert (first["status"], first["verdict"], first["steps"]) == ("finished", "no findings", 20)
    assert first["checkpoint"] == {"path": str(data), "step": 7}
    assert first["bytes"] > 3000 and abs(first["created"] - time.time()) < 60


@pytest.mark.parametrize(
    ("options", "count"), [([], 20), (["--all"], 25), (["--limit", "3"], 3), (["runs"], 20)]
)
def test_the_newest_twenty_unless_all_are_asked_for(made, capsys, options, count):
    for number in range(25):
        made(f"r{number:02}", number)
    lines = listed(capsys, *options)
    assert len(lines) == count + 2 and lines[1].startswith("r00 ")
    assert ("--all" in lines[-1]) == (count < 25)


def test_a_run_that_is_silent_may_be_stalled(made, capsys):
    run = made("mine", finished=False, meta={PROCESS: ProcessMark.of().to_dict()})
    assert listed(capsys)[1].split()[1] == "running"
    for path in run.path.iterdir():
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert listed(capsys)[1].split()[1] == "stalled?"
    assert main(["check", "mine"]) == 0
    assert "nothing written for 1 h" in capsys.readouterr().out


def test_no_runs(root, capsys):
    assert listed(capsys) == ["no runs in runs; start one with: holdfast run SCRIPT"]


def test_a_damaged_run_is_one_row(made, capsys):
    made("bad").meta_path.write_text("{")
    made("good", 1)
    lines = listed(capsys)
    assert lines[1].startswith("bad ") and "damaged: run.json is corrupt" in lines[1]
    assert lines[2].startswith("good  finished")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere"], "nowhere is no folder"),
        (["--limit", "0"], "--limit 0"),
        (["--al"], "did you mean '--all'?"),
        (["prune"], "no rule was given; write --keep N"),
        (["prune", "--keep", "-1"], "--keep -1"),
        (["prune", "--older-than", "14"], "--older-than '14'; write a number and a unit"),
        (["prune", "nowhere", "--keep", "1"], "nowhere is no folder"),
        (["prune", "--kep", "1"], "did you mean '--keep'?"),
    ],
)
def test_a_mistake_is_one_line(root, capsys, words, says):
    assert main(["runs", *words]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


@pytest.mark.parametrize("words", [["runs", "--help"], ["runs", "prune", "--help"]])
def test_help(capsys, words):
    assert main(words) == 0
    reported = capsys.readouterr().out
    assert f"usage: holdfast {' '.join(words[:-1])}" in reported and "ROOT" in reported


# Wherever a run is asked for.


@pytest.mark.parametrize("word", ["last", "ne", "new", "runs/ne", "runs/new"])
@pytest.mark.parametrize(
    "command", [["report"], ["check"], ["compare", "new"], ["checkpoint", "ls"]]
)
def test_a_run_by_its_name(made, capsys, command, word):
    save_checkpoint(made("new"), 7)
    made("old", 1)
    assert main([*command, word]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [["report"], ["check"], ["track", "--to=json"], ["checkpoint", "show"], ["checkpoint", "prune"],
     ["compare", "new1"]],
)  # fmt: skip
def test_an_ambiguous_name_is_one_line(made, capsys, command):
    made("new1")
    made("new2")
    assert main([*command, "new"]) == 2
    error = capsys.readouterr().err
    assert "new1 and new2" in error and error.count("\n") == 1


# Removing.


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_prune_only_tells_unless_it_may(made, root, capsys):
    for number in range(5):
        made(f"r{number}", number)
    before = names(root)
    assert main(["runs", "prune", "--keep", "2"]) == 0
    reported = capsys.readouterr().out
    assert names(root) == before and reported.count("would remove  r") == 3
    assert reported.splitlines()[-1].startswith("would remove 3 runs, ") and "--yes" in reported
    assert main(["runs", "prune", "--keep", "2", "--yes"]) == 0
    assert names(root) == {"r0", "r1"}
    assert "removed 3 runs, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (["--older-than", "2.5d"], {"r0", "r1", "r2"}),
        (["--older-than", "36h", "--keep", "4"], {"r0", "r1", "r2", "r3"}),
        (["--older-than", "3w", "--keep", "0"], {"r0", "r1", "r2", "r3", "r4"}),
        (["--keep", "0"], set()),
    ],
)
def test_every_rule_has_to_let_it_go(made, root, rule, left):
    for number in range(5):
        made(f"r{number}", number)
    assert main(["runs", "prune", *rule, "--yes"]) == 0
    assert names(root) == left


@pytest.mark.parametrize("mark", [ProcessMark.of(), replace(ProcessMark.of(), host="node7")])
def test_a_run_that_may_be_running_stays(made, root, capsys, mark):
    made("going", 30, finished=False, meta={PROCESS: mark.to_dict()})
    made("gone", 30, finished=False, meta={PROCESS: replace(mark, host=ProcessMark.of().host,
                                                            started=1).to_dict()})  # fmt: skip
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert names(root) == {"going"}
    assert "kept  going: it " in capsys.readouterr().out


def test_a_run_of_another_machine_goes_once_it_was_silent_for_a_day(made, root):
    far = replace(ProcessMark.of(), host="node7").to_dict()
    run = made("far", 30, finished=False, meta={PROCESS: far})
    for path in run.path.iterdir():
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert names(root) == set()


def test_what_is_not_a_run_of_this_folder_stays(made, root, tmp_path, capsys):
    made("mine", 9)
    made("scan/lr=1", 9)
    made("damaged", 9).meta_path.write_text("{")
    (root / "foreign").mkdir()
    (root / "foreign" / "file").touch()
    (root / "notes.txt").touch()
    elsewhere = Run.create(tmp_path / "elsewhere", {"created": "2020-01-01T00:00:00+00:00"})
    elsewhere.update_meta(status="finished")
    os.symlink(elsewhere.path, root / "link")
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert names(root) == {"scan", "damaged", "foreign", "notes.txt", "link"}
    assert elsewhere.meta_path.exists() and (root / "scan" / "lr=1" / "run.json").exists()
    reported = capsys.readouterr().out
    assert "kept  link: it is a link" in reported and "kept  damaged: its run.json" in reported


def test_links_in_a_run_go_and_what_they_lead_to_stays(made, root, tmp_path):
    run = made("mine", 9)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").touch()
    os.symlink(tmp_path / "data", run.path / "checkpoints")
    (run.path / "deep").mkdir()
    os.symlink(tmp_path / "data", run.path / "deep" / "link")
    assert main(["runs", "prune", "--keep", "0", "--yes", "--checkpoints-only"]) == 0
    assert (run.path / "checkpoints").is_symlink()
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert names(root / "mine") == {"deep"} and (tmp_path / "data" / "precious").exists()


@pytest.mark.parametrize("own", [True, False])
def test_a_run_json_that_calls_a_folder_its_own_removes_no_file_of_the_user(made, root, own):
    """Whoever forges a run cannot know which files the user will put beside it."""
    run = made("mine", 9)
    run.update_meta(own_folder=own)
    save_checkpoint(run, 7)
    kept = ["thesis.tex", "data/a.csv", "track/ride.gpx", "pictures/cat.jpg", "checkpoints/best.pt"]
    for name in kept:
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("mine")
    (run.path / "track" / "metrics.jsonl").touch()
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    left = {str(p.relative_to(run.path)) for p in run.path.rglob("*") if p.is_file()}
    assert left == set(kept)


def test_all_that_holdfast_writes_goes_with_the_folder(made, root):
    run = made("mine", 9)
    save_checkpoint(run, 7)
    for name in (
        "report.html", "compare.html", "traceback.r0.txt", "stacks.r0-p12.txt", "train.yaml",
        "hook_errors.txt", "cut_off/log.csv", "pictures/pictures.json", "pictures/a.png",
        "tensorboard/events.out.tfevents.1.host", "trace.json.gz", "profile.txt",
        "track/json.json", "track/metrics.csv", "checkpoints/step-0000000009.r0.safetensors.77.tmp",
    ):  # fmt: skip
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text("{}")
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert names(root) == set()


def test_in_a_folder_that_was_there_before_only_our_files_go(make_run, root):
    (root / "project").mkdir(parents=True)
    (root / "project" / "train.py").touch()
    run = make_run(name="runs/project")
    save_checkpoint(run, 7)
    assert main(["runs", "prune", "--keep", "0", "--yes"]) == 0
    assert names(root / "project") == {"train.py"}


@pytest.mark.parametrize("only", [["--checkpoints-only"], []])
def test_files_of_the_user_under_names_like_ours_stay(make_run, root, capsys, only):
    """`--run-dir out` for a script that keeps its own models in out/checkpoints."""
    (root / "out" / "checkpoints").mkdir(parents=True)
    run = make_run(name="runs/out")
    (root / "out" / "checkpoints" / "best.pt").write_bytes(b"a month of work")
    (root / "out" / "mymodel.r0.000001.bin").write_bytes(b"weights")
    (root / "out" / "report.html").write_text("<p>my own</p>")
    save_checkpoint(run, 7)
    damaged = run.path / "checkpoints" / "step-0000000009.r0.safetensors"
    damaged.write_bytes(b"of nobody")
    assert main(["runs", "prune", "--keep", "0", "--yes", *only]) == 0
    left = {str(path.relative_to(root / "out")) for path in (root / "out").rglob("*.*")}
    own_part = {"checkpoints/best.pt", "mymodel.r0.000001.bin", "report.html"}
    assert own_part | {f"checkpoints/{damaged.name}"} <= left
    assert ("run.json" in left) == bool(only)
    assert not any(name.startswith("checkpoints/step-0000000007") for name in left)
    reported = capsys.readouterr().out
    assert "checkpoints/best.pt" in reported and "not known to be ours" in reported


def test_checkpoints_only(made, root, capsys):
    save_checkpoint(made("a", 1), 7, size=5000)
    made("b", 2)
    assert main(["runs", "prune", "--keep", "0", "--checkpoints-only", "--yes"]) == 0
    reported = capsys.readouterr().out
    assert "removed checkpoints of 1 run, 5" in reported
    assert names(root) == {"a", "b"} and not (root / "a" / "checkpoints").exists()
    assert main(["check", "a"]) == 0


def test_prune_as_json(made, capsys):
    made("a", 1)
    assert main(["runs", "prune", "--keep", "0", "--format", "json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["removed"] is False and [run["name"] for run in reported["runs"]] == ["a"]


def test_what_cannot_be_removed_is_reported_and_gives_1(made, root, capsys, monkeypatch):
    made("a", 1)
    made("b", 2)

    def refuse(path, missing_ok=False):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert main(["runs", "prune", "--keep", "1", "--yes"]) == 1
    reported = capsys.readouterr().out
    assert "kept  b" in reported and "Permission denied" in reported
    assert names(root) == {"a", "b"} and (root / "b" / "run.json").exists()

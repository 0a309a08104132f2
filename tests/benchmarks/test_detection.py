"""``benchmarks/detection.py``: trials, the files they are kept in, and the command."""

from __future__ import annotations

import json

import detection
import numpy as np
import pytest
from detecting.corpus import read_collection
from detecting.running import read_trials, run_all, write_trials
from detecting.trial import Trial, judge_again, known_steps, read_trial

from holdfast.detectors import select
from holdfast.errors import UsageError
from holdfast.faults.running import ProcessEnd
from holdfast.run import read_run

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(8, 4)
    x[0] = float("nan") if step == 7 else x[0]
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def own(tmp_path):
    """A collection with one fault and one script that trains nothing."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "sick.py").write_text(TRAINING)
    (folder / "well.py").write_text("print('hello')\n")
    answers = [
        {"script": "sick.py", "code": "NUM001", "line": 7, "first_step": 7},
        {"script": "well.py", "why": "nothing is wrong"},
    ]
    (folder / "answers.json").write_text(json.dumps(answers))
    return folder


@pytest.fixture
def not_run(monkeypatch, make_trial):
    """The scripts are not run: the sick one gets the right finding."""

    def try_case(case, keep=None):
        findings = [("NUM001", "sick.py", 7)] if "sick" in case.name else []
        return make_trial(case.name, *findings)

    monkeypatch.setattr(detection, "try_case", try_case)


def test_a_run_folder_becomes_a_trial(make_run, make_rows):
    run = make_run(make_rows(30, loss={5: np.nan}, loss_bad={5: 1}, skipped={5: 1}))
    trial = read_trial("x", run.path, ProcessEnd(0, 1.5))
    assert (trial.outcome, trial.steps, trial.skipped) == ("finished", 30, 1)
    assert trial.codes == ("NUM001",) and trial.known == {"NUM001": 5}
    assert Trial.of(trial.plain()) == trial


def test_no_run_folder_is_a_script_that_never_trained(tmp_path):
    assert read_trial("x", tmp_path / "none", ProcessEnd(0, 1.0)).outcome == "finished"
    assert read_trial("x", tmp_path / "none", ProcessEnd(1, 1.0)).outcome == "failed"
    assert read_trial("x", tmp_path, ProcessEnd(0, 1.0)).errors


def test_a_code_is_known_when_the_rows_show_it(make_run, make_rows):
    """A spike is reported once it has lasted; the step it is about lies before that."""
    rows = make_rows(
        40, loss={i: 60 - i for i in range(20, 30)}, outlier=dict.fromkeys(range(20, 30), 2)
    )
    (lane,) = read_run(make_run(rows))
    (finding,) = [finding for finding in lane.findings if finding.code == "OPT001"]
    assert known_steps(lane)["OPT001"] >= finding.step >= 20


def test_a_run_folder_is_judged_again_without_a_detector(make_run, make_rows, tmp_path):
    run = make_run(make_rows(30, loss={5: np.nan}, loss_bad={5: 1}, skipped={5: 1}))
    trial = read_trial("x", run.path, ProcessEnd(0, 1.5))
    again = judge_again(trial, run.path)
    assert again is not None and again.findings == trial.findings and again.seconds == 1.5
    without = judge_again(trial, run.path, select((), ["NUM001"]))
    assert without is not None and "NUM001" not in without.codes
    assert judge_again(trial, tmp_path / "gone") is None
    assert judge_again(trial, tmp_path) is None


def test_trials_merge_by_name(collection, tmp_path, make_trial):
    cases = read_collection(collection)[:2]
    old, leaky, spiky = "old", cases[0].name, cases[1].name
    write_trials(tmp_path, {name: make_trial(name) for name in (old, leaky)})
    ended = []
    trials = run_all(
        cases,
        lambda case: make_trial(case.name, seconds=2.0),
        jobs=2,
        folders=[tmp_path, tmp_path / "other"],
        ended=lambda case, trial: ended.append(case.name),
    )
    assert {*trials} == {*ended} == {*read_trials(tmp_path / "other")} == {leaky, spiky}
    kept = read_trials(tmp_path)
    assert {*kept} == {old, leaky, spiky}
    assert kept[leaky].seconds == 2.0 and kept[old].seconds == 1.0


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1, "trials": {}}'])
def test_a_file_that_holds_no_trials(tmp_path, text):
    (tmp_path / "detection.json").write_text(text)
    with pytest.raises(UsageError, match="holds no trials"):
        read_trials(tmp_path)


@pytest.mark.slow
def test_kept_runs_are_judged_again(own, tmp_path, capsys):
    """The whole way: run, keep, judge, and judge without the detector that found the fault."""
    keep = tmp_path / "kept"
    assert detection.main([str(own), "--keep", str(keep)]) == 0
    shown = capsys.readouterr()
    assert "first contact, 1 faults: detected 1 of 1" in shown.out and "[2/2]" in shown.err
    assert (keep / "mine" / "sick" / "run.json").exists()
    (own / "sick.py").write_text("this is not run again")
    assert detection.main([str(own), "--judge", str(keep)]) == 0
    shown = capsys.readouterr()
    assert "Other findings than when recorded: 0 of 2 scripts" in shown.out and not shown.err
    again = [str(own), "--judge", str(keep)]
    assert detection.main([*again, "--same"]) == 0
    assert detection.main([*again, "--same", "--ignore", "NUM"]) == 1
    capsys.readouterr()
    assert detection.main([*again, "--ignore", "NUM"]) == 1
    assert "mine/sick: NUM001 warning sick.py:7 -> nothing" in capsys.readouterr().out
    assert detection.main([str(own), "--keep", str(keep)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_a_run_that_was_cut_short_goes_on(own, not_run, tmp_path, capsys):
    keep, write = tmp_path / "kept", tmp_path / "out"
    words = [str(own), "--keep", str(keep), "--write", str(write)]
    assert detection.main([*words, "--only", "well"]) == 0
    capsys.readouterr()
    half = keep / "mine" / "sick"
    half.mkdir(parents=True)
    assert detection.main([*words, "--resume", "--json"]) == 0
    shown = capsys.readouterr()
    assert "[1/1] mine/sick: NUM001" in shown.err and not half.exists()
    (score,) = json.loads(shown.out)["scores"]
    assert (score["name"], score["detected"], score["missed"]) == ("first contact", [1, 1], [])
    assert {*read_trials(keep)} == {*read_trials(write)} == {"mine/sick", "mine/well"}
    page = (write / "detection.md").read_text()
    assert "mine/sick" in page and "mine/well" in page and str(tmp_path) not in page


def test_a_missed_goal_is_exit_code_1(own, not_run, capsys):
    (own / "answers.json").write_text('[{"script": "well.py", "code": "MEM001"}]')
    assert detection.main([str(own)]) == 1
    assert "MISSED (first contact): detected 0 of 1, wanted 95%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["weather"], "no collection is called 'weather'"),
        (["noisy", "--only", "XYZ"], "no script is called 'XYZ'"),
        (["--resume"], "--write DIR"),
        (["--jobs", "0"], "--jobs 0"),
        (["--judge", "nowhere"], "no detection.json in nowhere"),
        (["--judge", "nowhere", "--resume"], "--judge runs nothing"),
        (["--ignore", "NUM"], "--ignore and --same are for --judge"),
    ],
)
def test_a_mistake_is_one_line(words, says, capsys):
    assert detection.main(words) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1

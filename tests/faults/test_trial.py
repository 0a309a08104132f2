from __future__ import annotations

import textwrap

import numpy as np
import pytest

from holdfast.errors import UsageError
from holdfast.faults._bench import bench, read_trials, write_trials
from holdfast.faults._catalogue import Case, catalogue
from holdfast.faults._trial import Trial, known_steps, read_trial, run_plain, try_case
from holdfast.run import read_run


def test_a_run_folder_becomes_a_trial(make_run, make_rows):
    run = make_run(make_rows(30, loss={5: np.nan}, loss_bad={5: 1}, skipped={5: 1}))
    trial = read_trial("x", run.path, 0, 1.5)
    assert (trial.outcome, trial.steps, trial.skipped) == ("finished", 30, 1)
    assert [said.code for said in trial.said] == ["NUM001"] and trial.known == {"NUM001": 5}
    assert Trial.of(trial.plain()) == trial


def test_no_run_folder_is_a_script_that_never_trained(tmp_path):
    assert read_trial("x", tmp_path / "none", 0, 1.0).outcome == "finished"
    assert read_trial("x", tmp_path / "none", 1, 1.0).outcome == "failed"
    assert read_trial("x", tmp_path, 0, 1.0).errors


def test_a_code_is_known_when_the_rows_show_it(make_run, make_rows):
    """A spike is told once it has lasted; the step it is about lies before that."""
    rows = make_rows(
        40, loss={i: 60 - i for i in range(20, 30)}, outlier=dict.fromkeys(range(20, 30), 2)
    )
    (lane,) = read_run(make_run(rows))
    (finding,) = [finding for finding in lane.findings if finding.code == "OPT001"]
    assert known_steps(lane)["OPT001"] >= finding.step >= 20


def script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(text))
    return Case(name="made/script", half="unseen", path=path)


def test_a_script_is_run_as_it_is(tmp_path):
    case = script(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(12):
            x = torch.randn(8, 4)
            x[0] = float("nan") if step == 7 else x[0]
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        """,
    )
    trial = try_case(case)
    assert (trial.exit_code, trial.outcome, trial.steps) == (0, "finished", 12)
    assert trial.said[0].step == trial.known[trial.said[0].code] == 7


def test_a_script_that_takes_too_long_is_killed_with_its_children(tmp_path):
    case = script(
        tmp_path,
        """
        import subprocess, sys, time
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        time.sleep(60)
        """,
    )
    code, seconds = run_plain(case, limit=1.0)
    assert code is None and seconds < 20
    assert try_case(case, limit=3.0).exit_code == -9


def test_trials_merge_by_name_and_the_bench_goes_on(collection, tmp_path, make_trial):
    cases = catalogue(collection / "nothing", [collection])
    told = []

    def try_one(case):
        return make_trial(case.name, seconds=2.0)

    write_trials(tmp_path, {"old": make_trial("old"), "other/leaky": make_trial("other/leaky")})
    trials = bench(
        cases[:2],
        jobs=2,
        folder=tmp_path,
        told=lambda case, trial: told.append((case.name, trial is not None)),
        try_one=try_one,
    )
    assert set(trials) == {"other/leaky", "other/spiky"}
    kept = read_trials(tmp_path)
    assert set(kept) == {"old", "other/leaky", "other/spiky"}
    assert kept["other/leaky"].seconds == 2.0 and kept["old"].seconds == 1.0
    assert sorted(told) == [(case.name, done) for case in cases[:2] for done in (False, True)]


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 9, "trials": {}}'])
def test_a_file_that_is_no_bench(tmp_path, text):
    (tmp_path / "detection.json").write_text(text)
    with pytest.raises(UsageError, match="is no bench"):
        read_trials(tmp_path)

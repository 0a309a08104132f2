from __future__ import annotations

import functools
import json

import pytest

from holdfast.cli import faults, main
from holdfast.faults._trial import Said, Trial

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(8, 4)
    x[0] = float("nan") if step == BAD else x[0]
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def mine(tmp_path):
    """A collection with one fault and one healthy script."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "sick.py").write_text(f"BAD = 7\n{TRAINING}")
    (folder / "well.py").write_text(f"BAD = -1\n{TRAINING}")
    answers = [
        {"script": "sick.py", "code": "NUM005", "also_codes": ["NUM001"], "first_step": 7},
        {"script": "well.py", "why": "nothing is wrong"},
    ]
    (folder / "answers.json").write_text(json.dumps(answers))
    return str(folder)


@pytest.fixture
def unrun(monkeypatch):
    """The bench without the scripts: the sick one is found sick."""

    def try_one(case):
        said = (Said(code="NUM005", severity="error", step=7),) if "sick" in case.name else ()
        return Trial(name=case.name, exit_code=0, outcome="finished", seconds=1.0, said=said)

    monkeypatch.setattr(faults, "bench", functools.partial(faults.bench, try_one=try_one))


def test_list(capsys):
    assert main(["faults", "list", "--half", "seen", "--only", "NUM"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("seen: ") and "nonfinite_loss" in told and "loss_spike" not in told


def test_list_as_json(mine, capsys):
    assert main(["faults", "list", "--json", "--from", mine, "--only", "mine"]) == 0
    sick, well = json.loads(capsys.readouterr().out)
    assert (sick["name"], sick["codes"], well["healthy"]) == (
        "mine/sick",
        ["NUM005", "NUM001"],
        True,
    )


def test_run(mine, tmp_path, capsys):
    keep = tmp_path / "kept"
    assert main(["faults", "run", "mine/sick", "--from", mine, "--keep", str(keep)]) == 0
    told = capsys.readouterr().out
    assert "python    exit code 0" in told and "detected  yes" in told and "steps     0" in told
    assert "nonfinite" in told and (keep / "run.json").exists()
    assert main(["faults", "run", "mine/sick", "--from", mine, "--keep", str(keep)]) == 2
    assert "already holds a run" in capsys.readouterr().err


def test_bench_keeps_trials_and_goes_on(mine, unrun, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["faults", "bench", "--from", mine, "--write", str(out)]
    assert main([*words, "--only", "mine/well"]) == 0
    seen = capsys.readouterr()
    assert "Goals met" in seen.out and seen.err.startswith("[1/1] mine/well: nothing")
    assert main([*words, "--only", "mine", "--resume", "--json"]) == 0
    seen = capsys.readouterr()
    assert seen.err.count("\n") == 1 and "mine/sick" in seen.err
    (score,) = json.loads(seen.out)["scores"]
    assert (score["detected"], score["healthy"], score["missed"]) == ([1, 1], 1, [])
    page = (out / "detection.md").read_text()
    assert "## The unseen half" in page and "mine/sick" in page and "mine/well" in page


def test_a_missed_goal_is_exit_code_1(mine, unrun, tmp_path, capsys):
    answers = [{"script": "well.py", "code": "MEM001"}]
    (tmp_path / "mine" / "answers.json").write_text(json.dumps(answers))
    assert main(["faults", "bench", "--from", mine, "--only", "mine"]) == 1
    assert "MISSED (unseen): detected 0 of 1, wanted 95%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nonfinite_los"], "did you mean 'nonfinite_loss'?"),
        (["bench", "--only", "XYZ"], "nothing is called 'XYZ'"),
        (["bench", "--resume"], "--write DIR"),
        (["bench", "--jobs", "0"], "--jobs 0"),
        (["list", "--half", "third"], "invalid choice"),
        (["list", "--from", "nowhere"], "no answers.json in nowhere"),
        ([], "VERB"),
    ],
)
def test_a_mistake_is_one_line(words, says, capsys):
    assert main(["faults", *words]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1

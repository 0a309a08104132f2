from __future__ import annotations

import json

import pytest

from holdfast.cli import faults, main
from holdfast.faults.catalogue import read_fault

SCRIPT = '''"""A batch holds a NaN."""
import torch
CODE = "NUM001"
FIRST_STEP = 7
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    x = torch.randn(8, 4)
    x[0] = float("nan") if step == FIRST_STEP else x[0]
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
'''


@pytest.fixture
def bad_batch(tmp_path, monkeypatch):
    """A fault that takes a second, in place of those of the package; returns its script."""
    script = tmp_path / "bad_batch.py"
    script.write_text(SCRIPT)
    monkeypatch.setattr(faults, "read_faults", lambda names: (read_fault(script),))
    return script


def test_list(capsys):
    assert main(["faults", "list", "--only", "NUM"]) == 0
    shown = capsys.readouterr().out
    assert "nonfinite_loss" in shown and "loss_spike" not in shown


def test_list_as_json(bad_batch, capsys):
    assert main(["faults", "list", "--json"]) == 0
    (fault,) = json.loads(capsys.readouterr().out)
    assert (fault["name"], fault["code"], fault["first_step"]) == ("bad_batch", "NUM001", 7)
    assert fault["why"] == "A batch holds a NaN."


@pytest.mark.slow
def test_run(bad_batch, tmp_path, capsys):
    keep = tmp_path / "kept"
    words = ["faults", "run", "bad_batch", "--keep", str(keep)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "python    exit code 0" in shown and "found     yes" in shown and "NUM001" in shown
    assert (keep / "run.json").exists()
    assert main(words) == 2
    assert "already holds a run" in capsys.readouterr().err


@pytest.mark.slow
def test_another_line_than_that_of_the_fault_is_exit_code_1(bad_batch, capsys):
    line = 'LINE_OF = "optimizer.zero_grad()"\n'
    bad_batch.write_text(SCRIPT.replace("model =", f"{line}model ="))
    assert main(["faults", "run", "bad_batch", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["found"], shown["lines"], shown["python"]["exit_code"]) == (False, [11], 0)
    assert shown["findings"][0]["code"] == "NUM001"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "nonfinite_los"], "did you mean 'nonfinite_loss'?"),
        (["list", "--only", "XYZ"], "no fault is called 'XYZ'"),
        ([], "VERB"),
    ],
)
def test_a_mistake_is_one_line(words, says, capsys):
    assert main(["faults", *words]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1

from __future__ import annotations

import pytest

from holdfast.cli import main
from holdfast.detectors import ALL


@pytest.mark.parametrize("word", ["NUM002", "num002", "nonfinite_gradient"])
def test_by_code_or_name(word, capsys):
    assert main(["explain", word]) == 0
    assert capsys.readouterr().out.startswith("NUM002  nonfinite_gradient")


def test_without_a_code_all_are_listed(capsys):
    assert main(["explain"]) == 0
    told = capsys.readouterr().out
    assert all(f"{detector.code}  " in told for detector in ALL)


def test_an_unknown_code_names_the_nearest(capsys):
    assert main(["explain", "nonfinite_grad"]) == 2
    captured = capsys.readouterr()
    assert "NUM002 nonfinite_gradient" in captured.err and captured.out == ""


def test_ascii_terminals_get_a_question_mark(monkeypatch):
    import io

    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    from holdfast.cli import _output

    _output.write("a → b\n")
    assert buffer.getvalue() == b"a ? b\n"

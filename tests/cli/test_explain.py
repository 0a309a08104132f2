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
    reported = capsys.readouterr().out
    assert all(f"{detector.code}  " in reported for detector in ALL)


def test_words_find_a_ranked_list_or_the_only_one(capsys):
    assert main(["explain", "nan"]) == 0
    reported = capsys.readouterr().out
    assert "findings fit 'nan', the best first:" in reported
    assert reported.index("\nNUM001  ") < reported.index("\nNUM005  ")
    assert main(["explain", "loss", "spike"]) == 0
    assert capsys.readouterr().out.startswith("OPT001  loss_spike")


def test_several_codes_are_several_pages(capsys):
    assert main(["explain", "NUM001", "OPT001"]) == 0
    reported = capsys.readouterr().out
    assert reported.startswith("NUM001  nonfinite_loss") and "\nOPT001  loss_spike" in reported
    assert main(["explain", "NUM001", "OPT01"]) == 2
    assert capsys.readouterr().out == ""


def test_an_unknown_code_names_the_nearest(capsys):
    assert main(["explain", "NAN002"]) == 2
    captured = capsys.readouterr()
    assert "NUM002 nonfinite_gradient" in captured.err and captured.out == ""


def test_ascii_terminals_get_a_question_mark(monkeypatch):
    import io

    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, encoding="ascii"))
    from holdfast.cli import _output

    _output.write("a → b\n")
    assert buffer.getvalue() == b"a ? b\n"


def test_one_page_that_only_mentions_the_words_is_no_answer(capsys):
    assert main(["explain", "gradient", "accumulation"]) == 0
    reported = capsys.readouterr().out
    assert reported.startswith(
        "nothing is about 'gradient accumulation' itself; one finding mentions"
    )
    assert "\nNUM001  " in reported and "What it detects" not in reported

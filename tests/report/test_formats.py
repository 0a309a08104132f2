"""Findings for other programs: annotations of a workflow, SARIF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.detectors import ALL
from holdfast.report.ending import RunEnding
from holdfast.report.github import github_text
from holdfast.report.sarif import sarif_text
from holdfast.types import Finding, Severity

FINISHED = RunEnding(word="finished", line="finished")
KILLED = RunEnding(word="killed", line="killed by SIGKILL")
META: dict[str, Any] = {"command": ["train.py", "--lr", "1"], "holdfast": "0.1.0", "exit_code": 1}


def finding(**given: Any) -> Finding:
    facts: dict[str, Any] = {
        "code": "NUM001", "name": "nonfinite_loss", "severity": Severity.ERROR, "step": 412,
        "last_step": 900, "rank": 0, "message": "50% of losses: NaN,\nfrom step 412 on",
        "advice": "clamp it", "confidence": 0.9, "evidence": {"diff": "-a\n+b"},
    }  # fmt: skip
    return Finding(**facts | given)


def test_an_annotation_marks_the_line_and_survives_its_own_punctuation(tmp_path):
    at = finding(file=str(tmp_path / "src" / "a,b.py"), line=88)
    reported = github_text([at], FINISHED, META, tmp_path)
    assert reported == (
        "::error file=src/a%2Cb.py,line=88,title=NUM001 nonfinite loss::"
        "50%25 of losses: NaN,%0Afrom step 412 on%0Aclamp it%0AMore: holdfast explain NUM001\n"
    )


@pytest.mark.parametrize(
    ("severity", "level"),
    [(Severity.ERROR, "error"), (Severity.WARNING, "warning"), (Severity.INFO, "notice")],
)
def test_a_finding_without_a_line_marks_the_script(severity, level):
    reported = github_text([finding(severity=severity)], FINISHED, META, Path.cwd())
    assert reported.startswith(f"::{level} file=train.py,title=")


def test_a_run_that_died_without_a_finding_is_an_error():
    reported = github_text([], KILLED, META, Path())
    assert reported == "::error title=holdfast::killed by SIGKILL, no findings\n"


def test_sarif_has_rule_place_and_help(tmp_path):
    places = [finding(file=str(tmp_path / "my model.py"), line=88), finding(), finding(code="ZZZ9")]
    log = json.loads(sarif_text(places, KILLED, META, tmp_path, ALL))
    assert (log["version"], len(log["runs"])) == ("2.1.0", 1)
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["NUM001", "ZZZ9"]
    assert "What to do" in rules[0]["help"]["text"] and "``" not in rules[0]["id"]
    first, second, third = run["results"]
    place = first["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "my%20model.py"
    assert place["region"] == {"startLine": 88}
    assert "region" not in second["locations"][0]["physicalLocation"]
    assert [r["ruleIndex"] for r in (first, second, third)] == [0, 0, 1]
    assert first["level"] == "error" and first["properties"]["diff"] == "-a\n+b"
    assert run["invocations"] == [
        {"executionSuccessful": False, "exitCode": 1, "exitCodeDescription": "killed by SIGKILL"}
    ]


def test_the_same_fault_of_the_next_run_is_the_same_alert(tmp_path):
    logs = [
        json.loads(sarif_text([finding(step=step)], FINISHED, META, tmp_path, ALL))
        for step in (3, 400)
    ]
    keys = [log["runs"][0]["results"][0]["partialFingerprints"] for log in logs]
    assert keys[0] == keys[1]


@pytest.mark.parametrize("command", ["report", "check"])
def test_both_commands_offer_both(command, make_run, make_rows, capsys, tmp_path):
    run = str(make_run(make_rows(20, loss_bad={5: 1}, skipped={5: 1})).path)
    code = 1 if command == "check" else 0
    assert main([command, run, "--format", "github"]) == code
    assert capsys.readouterr().out.startswith("::")
    file = tmp_path / "x.sarif"
    assert main([command, run, "--format", "sarif", "--output", str(file)]) == code
    assert json.loads(file.read_text())["runs"][0]["results"][0]["ruleId"] == "NUM001"
    assert capsys.readouterr().out == ""

from __future__ import annotations

import json

import numpy as np

from holdfast.report import check_json, replay, report_json, summarize


def refuse(token):
    raise ValueError(f"{token} is not JSON")


def test_everything_is_there_and_it_is_strict_json(make_run, make_rows, record_lane):
    rows = make_rows(9, loss={5: np.nan}, loss_bad={5: 1}, skipped={5: 1}, grad_bad={5: 1})
    run = make_run(rows)
    record_lane(run, make_rows(9, grad_bad={5: 1}), lane="r1")
    data = json.loads(report_json(summarize(run)), parse_constant=refuse)
    assert (data["format"], data["outcome"], data["steps"], data["skipped"]) == (
        1,
        "finished",
        9,
        1,
    )
    (finding,) = data["findings"]
    assert (finding["code"], finding["severity"], finding["step"]) == ("NUM001", "warning", 5)
    assert (finding["ranks"], finding["consequences"]) == ([0], [["NUM002", 1]])
    assert [lane["lane"] for lane in data["lanes"]] == ["r0", "r1"]
    assert data["meta"]["script"] == "train.py"
    assert data["path"] == str(run.path)


def test_unknown_numbers_are_words(make_run, make_rows):
    data = json.loads(report_json(summarize(make_run(make_rows(1, loss=np.nan)))))
    assert data["guard_cost"] == "NaN"
    assert data["first_loss"] == "NaN"


def test_findings_alone(make_run, make_rows):
    data = json.loads(check_json(replay(make_run(make_rows(9, grad_bad={5: 1})))))
    assert (data["count"], data["findings"][0]["code"], data["sick"]) == (1, "NUM002", True)
    assert json.loads(check_json(replay(make_run(name="well")))) == {
        "format": 1, "outcome": "finished", "ending": "finished", "sick": False, "count": 0,
        "findings": [],
    }  # fmt: skip

from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors import select
from holdfast.detectors.nonfinite_loss import NonfiniteLoss
from holdfast.errors import RunFolderError
from holdfast.report import (
    check_lines,
    plain,
    replay,
    summarize,
)
from holdfast.run import (
    DECLARATION,
    FIRST_ROW,
    LaneWriter,
    Run,
    encode,
)


def test_replay_says_what_was_said_live(make_run, make_rows):
    rows = make_rows(300, loss={5: np.nan, 200: np.nan}, loss_bad={5: 1, 200: 1}, grad_bad={7: 1})
    batches = [{"step": 5, "indices": [1, 2], "bad": []}]
    run = make_run(rows, batches=batches)
    assert replay(run).findings == summarize(run).findings


def test_replay_of_a_selection(make_run, make_rows):
    run = make_run(make_rows(30, loss_bad={5: 1}, grad_bad={7: 1}))
    assert [f.code for f in replay(run, select(["NUM002"])).findings] == ["NUM002"]


def test_replay_tells_which_detector_failed(make_run):
    class Broken(NonfiniteLoss):
        def suspects(self, window):
            raise KeyError("x")

    result = replay(make_run(), [Broken])
    assert result.errors[0].data["error"] == "KeyError: 'x'"


def test_as_text(make_run, make_rows):
    result = replay(make_run(make_rows(30, loss_bad={5: 1})))
    reported = plain(check_lines(result))
    assert reported.startswith("1 finding in 30 rows of 1 process\n")
    assert "NUM001  nonfinite loss  error" in reported
    clean = plain(check_lines(replay(make_run(name="clean"))))
    assert clean == "No findings in 20 rows of 1 process\n"


def test_rows_without_times_are_refused(tmp_path):
    run = Run.create(tmp_path / "run", {})
    form = [["step", "<i8"], ["loss", "<f4"]]
    writer = LaneWriter(run, "r0")
    writer.take([(DECLARATION, encode({"id": FIRST_ROW, "table": "steps", "dtype": form}))])
    writer.take([(FIRST_ROW, b"\0" * 12)])
    writer.close()
    with pytest.raises(RunFolderError, match="no column time"):
        replay(run)

"""Several losses are several curves, and different losses are not compared by percent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.report import read_record, report_html, report_md, summarize
from holdfast.report.compare import compare, compare_lines
from holdfast.report.layout import plain

D, G = 7, 9


def reported(make_event: Any, number: int, name: str, line: int, kind: str = "MseLoss") -> Any:
    part = {"name": name, "file": "gan.py", "line": line, "kind": kind}
    return make_event("losses", 0, 0, number=number, opt=0, parts=[part], summed=1)


@pytest.fixture
def gan(make_run, make_rows, make_event):
    """A run in which two losses take turns; of its last rows it is not known whose they are."""
    losses = np.tile([10.0, 1.0], 60)
    numbers = np.tile([D, G], 60).astype(float)
    rows = make_rows(120, loss=losses, losses=numbers)
    events = [reported(make_event, D, "err_d", 18), reported(make_event, G, "err_g", 21)]
    return make_run(rows, name="gan", events=events)


def test_the_headline_names_each_loss(gan):
    summary = summarize(gan)
    change = "losses err_d (gan.py:18) 10 → 10, err_g (gan.py:21) 1 → 1 (medians of 3 steps)"
    assert summary.loss_change == change
    assert summary.first_loss == summary.last_loss == 10
    assert "err_g (gan.py:21) 1 → 1" in report_md(read_record(gan)).replace("\\", "")


def test_the_page_draws_a_curve_for_each(gan):
    page = report_html(read_record(gan))
    assert "err_d (gan.py:18) from 10 to 10 over" in page
    assert "err_g (gan.py:21) from 1 to 1 over" in page


def test_rows_between_two_losses_belong_to_none(make_run, make_rows, make_event):
    numbers = np.full(120, np.nan)
    numbers[[0, 20, 80, 100]] = D, D, G, G
    rows = make_rows(120, loss=np.where(np.arange(120) < 50, 10.0, 1.0), losses=numbers)
    events = [reported(make_event, D, "a", 1), reported(make_event, G, "b", 2)]
    one, two = summarize(make_run(rows, name="r", events=events)).losses
    assert (one.called, one.first, one.last) == ("a", 10, 10)
    assert (two.called, two.first, two.last) == ("b", 1, 1)


def test_optimizers_of_an_earlier_version_have_a_loss_each(make_run, make_rows):
    rows = make_rows(100, opt=np.tile([0.0, 1.0], 50), loss=np.tile([4.0, 2.0], 50))
    change = summarize(make_run(rows, name="old")).loss_change
    assert change == "losses optimizer 0 4 → 4, optimizer 1 2 → 2 (medians of 2 steps)"


@pytest.mark.parametrize("asked", [None, {"loss": 0.05, "findings": "off", "ending": "off"}])
def test_runs_with_different_losses_are_not_compared_by_percent(
    make_run, make_rows, make_event, asked: Any
):
    runs = [
        make_run(
            make_rows(60, loss=level, losses=D),
            name=name,
            events=[reported(make_event, D, "loss", 3, kind)],
        )
        for name, level, kind in (("a", 0.3, "NllLoss"), ("b", 2.2, "MseLoss"))
    ]
    found = compare(runs[0], runs[1], asked)
    (loss,) = [figure for figure in found.figures if figure.name == "loss"]
    assert not found.worse and not loss.verdict
    text = plain(compare_lines(found))
    assert "different losses: loss (gan.py:3), made by NllLoss" in " ".join(text.split())
    assert "%" not in next(row for row in text.splitlines() if "loss to" in row)


def test_losses_that_a_compiler_hides_are_compared(make_run, make_rows, make_event):
    runs = [
        make_run(
            make_rows(60, loss=level, losses=D),
            name=name,
            events=[reported(make_event, D, "loss", 3, kind)],
        )
        for name, level, kind in (("a", 0.3, "NllLoss"), ("b", 2.2, "CompiledFunction"))
    ]
    assert compare(*runs).worse

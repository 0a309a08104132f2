"""Two runs on one page: curves over each other, and every change in percent."""

from __future__ import annotations

import re

import numpy as np
import pytest

from holdfast.cli import main
from holdfast.report.compare import Figure, change_words, compare


def words_of(page: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", page).replace("\N{NO-BREAK SPACE}", " ").split())


@pytest.fixture
def pair(make_run, make_rows):
    first = make_run(make_rows(100), name="first")
    rows = make_rows(120, loss=5.0, rss=6e8, loss_bad={60: 1})
    rows["time"] = 1.7e9 + np.arange(120) * 0.013
    return first, make_run(rows, name="second")


def test_the_page_lies_in_the_folder_of_the_second_run(pair, capsys):
    first, second = pair
    assert main(["compare", str(first.path), str(second.path), "--format", "html"]) == 1
    path = second.path / "compare.html"
    assert capsys.readouterr().out == f"{path}\n"
    page = path.read_text()
    reported = words_of(page)
    assert "Worse" in reported and "step time, median 10 ms 13 ms +30.0% worse" in reported
    assert (
        "host memory (rss), peak 476.8 MiB 572.2 MiB +20.0% worse" in reported
        and "only in B: NUM001" in reported
    )
    assert "A 10 ms, B 13 ms (+30.0%): median of all steps but the first few." in reported
    assert page.count('data-name="A"') == page.count('data-name="B"') == 4
    assert "https://" not in page and "default-src" in page


def test_another_file_and_no_change(pair, tmp_path, capsys):
    first = str(pair[0].path)
    file = tmp_path / "same.html"
    assert main(["compare", first, first, "--format", "html", "--output", str(file)]) == 0
    reported = words_of(file.read_text())
    assert "Not worse" in reported and "B is within the limits of A" in reported
    assert "Both runs have the same findings." in reported


def test_limits_are_reported_in_percent(pair, capsys):
    main(["compare", str(pair[0].path), str(pair[1].path)])
    assert "(+30.0%), limit 10 %" in capsys.readouterr().out


def test_like_is_compared_with_like_and_told_once(make_run, make_rows, tmp_path):
    """The peak of one run and the warm-up of a short one are not set against something else."""
    rss = np.full(120, 5e8)
    rss[40] = 9e8
    slow = np.full(120, 0.01)
    slow[0] = 5.0
    runs = [
        make_run(make_rows(120, rss=rss, forward=slow), name="a"),
        make_run(make_rows(20, rss=6e8, forward=0.01), name="b"),
    ]
    figures = {f.name: f for f in compare(*runs).figures}
    assert (figures["rss"].of, figures["forward"].of) == ("peak", "mean")
    assert figures["forward"].before == pytest.approx(0.01)
    file = tmp_path / "c.html"
    main(["compare", *(str(run.path) for run in runs), "--format", "html", "--output", str(file)])
    page = words_of(file.read_text())
    assert "(-33.3%): peak of each run." in page and "host memory (rss), peak" in page


@pytest.mark.parametrize(
    ("before", "after", "reported"),
    [(2.0, 1.0, "-50.0%"), (0.0, 1.0, "from 0"), (0.0, 0.0, "+0.0%"), (np.nan, 1.0, "")],
)
def test_a_change_in_words(before, after, reported):
    assert change_words(Figure(name="loss", before=before, after=after)) == reported

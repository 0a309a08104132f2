from __future__ import annotations

import pytest

from holdfast.detectors import ALL, SECTIONS
from holdfast.report import catalogue_lines, explain_lines, plain


@pytest.mark.parametrize("detector", ALL, ids=lambda d: d.code)
def test_a_document_is_reported_whole(detector):
    reported = plain(explain_lines(detector))
    assert reported.startswith(f"{detector.code}  {detector.name}  (")
    places = [reported.find(f"\n{title}\n") for title in SECTIONS if title != "Evidence"]
    assert "\nEvidence\n" not in reported  # names of fields say nothing to a person
    assert -1 not in places and places == sorted(places)
    assert "``" not in reported
    assert max(map(len, reported.splitlines())) <= 100


def test_the_catalogue_has_every_code_in_order():
    reported = plain(catalogue_lines(ALL, width=200)).splitlines()
    assert [line.split()[0] for line in reported[: len(ALL)]] == sorted(d.code for d in ALL)


@pytest.mark.parametrize("detector", ALL, ids=lambda detector: detector.code)
def test_pages_fit_a_narrow_terminal_word_for_word(detector):
    wide, narrow = plain(explain_lines(detector)), plain(explain_lines(detector, 50))
    assert narrow.split() == wide.split()
    body = narrow.splitlines()[1:]
    assert all(len(row) <= 50 or "`" in row or "http" in row for row in body)
    assert plain(explain_lines(detector, 120)) == wide

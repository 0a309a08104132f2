from __future__ import annotations

import pytest

from holdfast.detectors import Window
from holdfast.detectors.unreadable_sample import UnreadableSample


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        ("UnidentifiedImageError", "repair or remove the file"),
        ("FileNotFoundError", "repair or remove the file"),
        ("ConnectionResetError", "look at the connection or the storage"),
        ("ReadTimeout", "look at the connection or the storage"),
    ],
)
def test_a_file_is_repaired_only_where_it_was_reached(make_rows, make_event, error, advice):
    event = make_event("unreadable", 0, 3, type=error, message="no", replaced=True, sample=7)
    rows = make_rows(5)
    (finding,) = UnreadableSample().scan(Window(rows=rows, fresh=len(rows), events=[event]))
    assert finding.advice.startswith(advice) or advice in finding.advice

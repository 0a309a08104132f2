from __future__ import annotations

import pytest

from holdfast.detectors import Window
from holdfast.detectors.swallowed_exception import SwallowedException


@pytest.mark.parametrize(("step", "reported"), [(0, "nothing is trained: "), (3, "after step 3: ")])
def test_what_was_trained_before_is_not_denied(make_rows, make_event, step, reported):
    event = make_event("swallowed_exception", 0, step, type="KeyError", message="'a'", batches=8)
    rows = make_rows(5)
    (finding,) = SwallowedException().scan(Window(rows=rows, fresh=len(rows), events=[event]))
    assert reported in finding.advice

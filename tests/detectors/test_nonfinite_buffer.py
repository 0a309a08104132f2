from __future__ import annotations

import numpy as np

from holdfast.detectors import Window
from holdfast.detectors.nonfinite_buffer import NonfiniteBuffer

NAN = np.nan
BUFFERS = {0: ["bn.running_mean", "bn.running_var", "lowest"]}


def scan(rows):
    return list(NonfiniteBuffer().scan(Window(rows=rows, fresh=len(rows), buffers=BUFFERS)))


def test_a_buffer_that_turns_bad_while_all_else_is_fine(make_rows):
    (finding,) = scan(make_rows(4, buffer_bad={3: 1}, buffer_layer={3: 0}))
    assert finding.message == (
        "step 3: buffer bn.running_mean is NaN or inf, 1 of 3 buffers (loss and gradients finite)"
    )
    assert finding.evidence["layer"] == "bn.running_mean"
    assert "reset_running_stats" in finding.advice


def test_beside_anything_else_bad_it_is_not_counted(make_rows):
    for other in ({"loss_bad": {3: 1}}, {"grad_bad": {3: 1}}, {"param_bad": {3: 1}}):
        assert not scan(make_rows(4, buffer_bad={3: 1}, buffer_layer={3: 0}, **other))
    assert not scan(make_rows(4, buffer_bad={3: 1}, buffer_layer={3: 0}, input_bad={3: 1}))


def test_infinite_from_the_start_is_meant_so(make_rows):
    assert not scan(make_rows(4, buffer_bad=1, buffer_layer=2))
    assert scan(make_rows(4, buffer_bad=[1, 1, 1, 2], buffer_layer=2)), "one more turned bad"


def test_only_a_norm_has_statistics_to_reset(make_rows):
    (finding,) = scan(make_rows(4, buffer_bad={3: 1}, buffer_layer={3: 2}))
    assert "reset_running_stats" not in finding.advice and "finite values" in finding.advice

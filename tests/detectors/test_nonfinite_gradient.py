from __future__ import annotations

import numpy as np

from holdfast.detectors import Window
from holdfast.detectors.nonfinite_gradient import NonfiniteGradient

NAN, INF = np.nan, np.inf
LAYERS = {0: ["encoder.weight", "encoder.gru.weight_hh_l0", "head.bias"]}


def scan(rows, **known):
    known.setdefault("layers", LAYERS)
    return list(NonfiniteGradient().scan(Window(rows=rows, fresh=len(rows), **known)))


def bad(make_rows, **columns):
    base = {"grad_bad": {2: 1}, "grad_layer": {2: 1}, "grad_norm": {2: NAN}, "loss": {2: 2.31}}
    return make_rows(3, **(base | columns))


def test_names_the_layer_the_kind_and_the_finite_loss(make_rows):
    (finding,) = scan(bad(make_rows, skipped={2: 1}))
    assert finding.message == (
        "step 2 skipped: gradient of encoder.gru.weight_hh_l0 is NaN in 1 of 3 tensors "
        "(loss finite, 2.31)"
    )
    assert finding.evidence["layer"] == "encoder.gru.weight_hh_l0"
    assert "encoder.gru.weight_hh_l0" in finding.advice


def test_infinity_is_reported_from_nan(make_rows):
    (finding,) = scan(bad(make_rows, grad_max={2: INF}))
    assert " is inf in " in finding.message


def test_all_gradients_bad_points_at_loss_or_clipping(make_rows):
    (finding,) = scan(bad(make_rows, grad_bad={2: 3}))
    assert "clip_grad_norm_" in finding.advice


def test_without_names_it_still_speaks(make_rows):
    (finding,) = scan(bad(make_rows), layers={})
    assert "layer number 1" in finding.message
    (finding,) = scan(bad(make_rows, grad_layer={2: -1}, loss=NAN), layers={})
    assert "a gradient is NaN in 1 tensor (no loss was seen)" in finding.message


def test_explained_by_loss_input_or_parameters(make_rows):
    assert not scan(bad(make_rows, loss_bad={2: 1}, loss={2: NAN}))
    assert not scan(bad(make_rows, input_bad={2: 1}))
    assert not scan(bad(make_rows, param_bad={2: 1}))


def test_overflow_under_a_scaler_is_ordinary(make_rows):
    assert not scan(bad(make_rows, scale=65536.0))
    assert not scan(bad(make_rows, scale=65536.0, scaler_skipped={2: 1}))


def test_an_overflowing_norm_of_finite_gradients_is_no_fault(make_rows):
    assert not scan(make_rows(3, grad_norm={2: INF}))

"""When a run is suspected of damage, and by which numbers that is said."""

from __future__ import annotations

import math

import pytest

from holdfast.suspicion import LOSS, DamageWatch


def row(loss: float, usual: float, *, high: bool = False) -> dict[str, float]:
    outlier = float(LOSS if high else 0)
    limits = {"loss_limit": 2 * usual, "norm_baseline": 1.0}
    return {"loss": loss, "loss_baseline": usual, "outlier": outlier, "param_bad": 0.0, **limits}


@pytest.mark.parametrize("before", [1.0, math.nan])
def test_a_high_loss_is_measured_by_the_baseline_there_is(before: float) -> None:
    """The last quiet row may be from before there was one: then by that of the high rows."""
    watch = DamageWatch(patience=2, skips=8)
    assert watch.saw(3, row(1.1, before), bad=False, skipped=False) is None
    assert watch.saw(4, row(90.0, 1.5, high=True), bad=False, skipped=False) is None
    found = watch.saw(5, row(91.0, 1.5, high=True), bad=False, skipped=False)
    assert found is not None and (found.code, found.first) == ("OPT001", 4)
    expected = 1.5 if math.isnan(before) else before
    assert (found.usual, found.limit) == (expected, 2 * expected)

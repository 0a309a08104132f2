"""What a pass has changed in the variables of a script."""

from __future__ import annotations

import numpy as np

from holdfast.resume.passes import Passes
from holdfast.resume.values.nodes import same


def test_variables_that_hold_arrays_are_compared() -> None:
    passes, array = Passes(), np.arange(4.0)
    for held, changed in (
        (array, True),
        (array.copy(), False),
        (array + 1, True),
        (array[:2], True),
    ):
        node = {"#": "array", "v": held}
        found = passes.difference({"0": {"inside": node, "epochs": 3}})
        assert found["names"] == {"0": ["inside", "epochs"]}
        assert ("inside" in found["values"].get("0", {})) is changed


def test_nodes_are_the_same_by_their_bytes() -> None:
    nan = {"#": "array", "v": np.array([1.0, np.nan])}
    assert same([nan, 1], [{"#": "array", "v": nan["v"].copy()}, 1])
    assert not same([nan], [nan, nan]) and not same({"a": 1}, {"b": 1})
    assert not same(1, True) and not same(nan["v"], nan["v"].astype(np.float32))

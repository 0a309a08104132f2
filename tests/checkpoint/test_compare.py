from __future__ import annotations

import torch

from holdfast.checkpoint.compare import differences
from holdfast.checkpoint.tree import forms


def test_equal_states_have_no_differences():
    tree = {"a": torch.ones(2), "b": torch.ones(3, dtype=torch.int8)}
    found = differences(forms(tree), forms(tree))
    assert not found and found.message() == "no differences"


def test_every_kind_is_reported_with_both_forms():
    saved = {"w": ("float32", [3, 4]), "gone": ("float32", (1,)), "same": ("int64", ())}
    live = {"w": (torch.float32, (3, 5)), "new": (torch.float16, (2,)), "same": ("int64", [])}
    found = differences(saved, live)
    assert found.missing == (("new", "float16 [2]"),)
    assert found.unexpected == (("gone", "float32 [1]"),)
    assert found.differing == (("w", "float32 [3, 4]", "float32 [3, 5]"),)
    assert found.message().splitlines() == [
        "1 tensor missing from the checkpoint, only in the live state:",
        "  new: float16 [2]",
        "1 tensor missing from the live state, only in the checkpoint:",
        "  gone: float32 [1]",
        "1 tensor not alike:",
        "  w: float32 [3, 4] in the checkpoint, float32 [3, 5] in the live state",
    ]


def test_another_dtype_is_a_difference():
    assert differences({"w": ("float32", (2,))}, {"w": ("bfloat16", (2,))}).differing


def test_long_lists_are_cut_and_counted():
    many = {f"layer{i}": ("float32", (i,)) for i in range(30)}
    lines = differences({}, many).message().splitlines()
    assert len(lines) == 14
    assert lines[0].startswith("30 tensors missing") and lines[-1] == "  and 18 more"
    assert lines[1] == "  layer0: float32 [0]"


def test_the_sides_can_have_other_names():
    describe = differences({"a": ("int8", ())}, {}).message(saved="one", live="two")
    assert describe.startswith("1 tensor missing from two, only in one:")

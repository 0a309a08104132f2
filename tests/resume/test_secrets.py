"""No checkpoint holds a secret: a resumed script has it again, or is refused with the name."""

from __future__ import annotations

import argparse
import json
from typing import Any

import pytest

from holdfast.checkpoint.tree import flatten
from holdfast.resume.refusal import RefusedError
from holdfast.resume.values.baseline import StartValues
from holdfast.resume.values.nodes import MISSING
from holdfast.resume.values.restoring import ValueRestoring
from holdfast.resume.values.taking import Taking
from holdfast.resume.values.tensors import SavedTensors

SECRET = "Xk29secret"


def node_of(value: Any, path: str = "0/v") -> Any:
    return Taking(SavedTensors(), StartValues(), lambda name: True).take(value, path)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (SECRET, "0/password"),
        (SECRET, "module __main__/API_KEY_PROD"),
        (SECRET.encode(), "0/secret"),
        ([SECRET], "0/passwords"),
        ({"api_key": SECRET, "lr": 0.1}, "0/config"),
        ({"client": {"secret": SECRET}, "lr": [0.1]}, "0/config"),
        (argparse.Namespace(password=SECRET, lr=0.1), "0/args"),
        (f"host=db password={SECRET}", "0/conn"),
        (f"https://{SECRET}@host/x", "0/url"),
        (SECRET, "0/token"),
        ({SECRET: 1}, "0/known"),
        (["plain", f"is {SECRET}"], "0/log"),
    ],
)
def test_a_secret_is_named_and_kept_by_the_script(
    value: Any, path: str, monkeypatch: pytest.MonkeyPatch
):
    if path.split("/")[1] in ("known", "log"):
        monkeypatch.setenv("MY_API_KEY", SECRET)
    node = node_of(value, path)
    skeleton, tensors = flatten(node)
    assert SECRET not in json.dumps(skeleton)
    assert not tensors
    assert ValueRestoring().value(value, node, path) == value
    with pytest.raises(RefusedError, match=r"secret|not there"):
        ValueRestoring().value(MISSING, node, path)


def test_what_surely_is_a_secret_may_be_another_one():
    assert ValueRestoring().value("new", node_of(SECRET, "0/password"), "0/password") == "new"


def test_what_looks_like_a_secret_must_be_the_same():
    node = node_of(f"password={SECRET}", "0/conn")
    for other in (f"password={SECRET}2", 3, None, b"x"):
        with pytest.raises(RefusedError, match="another one"):
            ValueRestoring().value(other, node, "0/conn")


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("the", "0/token"),
        (["the", "cat", "sat"], "0/tokens"),
        ({"the": 1, "key": 2}, "0/vocabulary"),
        ("[PAD]", "0/pad_token"),
        ("layer1.weight", "0/key"),
        ("block_12_conv", "0/key"),
        ("/data/train/n01440764_10026.JPEG", "0/path"),
        ("9fceb02d0ae598e95dc970b74767f19372d61af8", "0/commit"),
        ("First Citizen: Before we proceed any further, hear me speak. " * 200, "0/text"),
    ],
)
def test_words_of_a_text_are_saved(value: Any, path: str):
    assert node_of(value, path) == value or node_of(value, path)["v"] == (
        [list(pair) for pair in value.items()] if isinstance(value, dict) else value
    )

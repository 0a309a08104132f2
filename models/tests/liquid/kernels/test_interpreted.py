"""The kernels themselves without a GPU: Triton interprets them in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton"),
]

PROGRAM = """
import sys, torch
from holdfast_models.liquid.kernels.check import compared
kind, tokens, *sizes = sys.argv[1:]
sizes = tuple(int(one) if one.isdecimal() else one for one in sizes)
torch.manual_seed(0)
print(*compared(kind, torch.device("cpu"), sizes, int(tokens)))
"""
CASES = [
    "scan 70",
    "lif 5 subtract fast_sigmoid",
    "lif 5 zero atan",
    "lif 5 none sigmoid",
    "lif 5 subtract triangle",
    "cfc 4 6 5",
    "cfc 4 5 0",
    "cfc 3 128 128",
    "cfc 3 256 128",
    "selective 66 3 3",
    "attend 300 16 1",
    "rows 5",
    "norm 5",
]


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str) -> None:
    words = [sys.executable, "-c", PROGRAM, *case.split()]
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | {"TRITON_INTERPRET": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    values, gradients = map(float, done.stdout.split())
    assert values < 1e-5
    assert gradients < 1e-4

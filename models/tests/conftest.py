"""What tests of every family need: the families plugged in, and rows as a training leaves them."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported is not looked through later, by the collector or by a guard."""
    gc.disable()
    try:
        return (yield)
    finally:
        if "torch" in sys.modules:
            import torch._dynamo  # noqa: F401 # the first optimizer would, and it is large
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True, scope="session")
def plugged_in() -> None:
    """Commands find the families of this checkout, installed or not, and nothing else."""
    os.environ["HOLDFAST_PLUGINS"] = "none,holdfast_models"


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., Any]:
    """``make_rows(8, lr=1e-4)``: the columns of healthy steps that detectors of families read."""

    def make(count: int, *, lr: Any = 1e-3) -> Any:
        columns = [(name, "<f4") for name in ("loss", "grad_norm", "lr")]
        rows = np.zeros(count, dtype=[("step", "<i8"), ("time", "<f8"), *columns])
        rows["step"] = np.arange(count)
        rows["time"] = 1.7e9 + rows["step"] * 0.01
        rows["loss"] = 2.0 * np.exp(-rows["step"] / 2000)
        rows["grad_norm"] = 1.0
        rows["lr"] = lr
        return rows

    return make

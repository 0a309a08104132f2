"""Rows of predictions, and a way to write a figure without waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., dict[str, Any]]:
    """``make_rows(300)``: columns of predictions of all tasks, with uncertainties of the energy."""

    def make(count: int) -> dict[str, Any]:
        generator = np.random.default_rng(3)
        spans = {
            "theta": (60, 120, 3), "phi": (-50, 50, 5), "energy": (0.015, 0.06, 5e-4),
            "timing": (-3e-9, 3e-9, 4e-11), "u": (-20, 20, 0.3), "v": (-60, 60, 0.4),
            "w": (1, 20, 0.5),
        }  # fmt: skip
        rows: dict[str, Any] = {"run_id": np.full(count, 7), "event_id": np.arange(count)}
        for name, (low, high, width) in spans.items():
            rows[f"true_{name}"] = generator.uniform(low, high, count)
            rows[f"pred_{name}"] = rows[f"true_{name}"] + generator.normal(0, width, count)
        rows["energy_log_var"] = np.full(count, 2 * np.log(5e-4))
        return rows

    return make

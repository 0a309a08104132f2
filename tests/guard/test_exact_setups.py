"""Forty ways to train, three poisoned batches each: as if they had never come, bit for bit."""

from __future__ import annotations

import copy

import pytest

from .conftest import MakeEngine
from .loops import differences
from .setups import BAD, SETUPS, run


@pytest.mark.parametrize("name", SETUPS)
def test_as_if_the_bad_batches_had_never_come(make_engine: MakeEngine, name: str) -> None:
    """Schedules and averages that the script itself goes on with do so in both."""
    engine = make_engine(replay=False, explain=False)
    poisoned = copy.deepcopy(run(SETUPS[name], poison=True))
    engine.close()
    assert not engine.off, engine.memory.of_kind("holdfast_error")  # type: ignore[attr-defined]
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    passed_over = (rows["skipped"] == 1) | (rows["scaler_skipped"] == 1)
    assert set(rows["step"][passed_over].tolist()) == set(BAD)
    make_engine(replay=False, explain=False)
    found = differences(poisoned, run(SETUPS[name], poison=False))
    assert all(t.isfinite().all() for t in poisoned["net"].values())
    assert [where for where in found if not where.startswith(SCALERS_OWN)] == []
    assert not found or name.startswith("GradScaler")


SCALERS_OWN = ("/scaler/_growth_tracker", "/net/norm.")
"""A scaler that skips by itself begins to count anew; what the forward pass made stays finite."""

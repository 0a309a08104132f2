"""On a GPU several optimizers in a burst do what they do without one."""

from __future__ import annotations

import pytest
import torch

from holdfast.guard.fast.burst import StepBurst
from holdfast.guard.fast.bursts import StepBursts

from ..guard.conftest import MakeEngine, make_engine
from ..guard.turns import (
    BAD_D,
    BAD_G,
    Clipped,
    Ended,
    Gan,
    Normed,
    Passes,
    Scaled,
    Seldom,
    Shared,
)

__all__ = ["make_engine"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"),
]


@pytest.mark.parametrize(
    ("kind", "own"),
    [(Gan, 24), (Normed, 24), (Passes, 24), (Shared, 20), (Clipped, 20), (Seldom, 8), (Scaled, 0)],
)
def test_turns_in_a_burst_change_nothing_but_when_rows_are_written(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch, kind: type[Gan], own: int
) -> None:
    noted, original = list[int](), StepBurst.step_ends

    def counted(self: StepBurst, optimizer: object, step: int) -> bool:
        noted.append(step)
        return original(self, optimizer, step)

    monkeypatch.setattr(StepBurst, "step_ends", counted)
    short = Ended(make_engine(budget=1.0, explain=False), kind("cuda"))
    assert len(noted) > own if own else not noted
    monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
    # Blocks of a gradient are added up in any order.
    short.is_like(Ended(make_engine(budget=1.0, explain=False), kind("cuda")), 1e-5)
    if kind in (Gan, Normed, Passes, Scaled):
        assert (short.skipped(0), short.skipped(1)) == (list(BAD_D), list(BAD_G))

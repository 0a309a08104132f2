"""Several optimizers in a burst: the same rows, weights, losses and skips as without."""

from __future__ import annotations

import pytest

from holdfast.guard.fast.burst import StepBurst
from holdfast.guard.fast.bursts import StepBursts

from .. import host_kernels
from ..conftest import MakeEngine
from ..turns import BAD_D, BAD_G, Clipped, Ended, Gan, Normed, Passes, Scaled, Seldom, Shared


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """The steps in bursts, with their optimizers."""
    host_kernels.install(monkeypatch)
    found: set[tuple[int, int]] = set()
    original = StepBurst.step_ends

    def noted(self: StepBurst, optimizer: object, step: int) -> bool:
        found.add((step, self.burst_part.plan.guard.index))
        return original(self, optimizer, step)

    monkeypatch.setattr(StepBurst, "step_ends", noted)
    return found


_slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (Passes, 24),
        (Shared, 24),
        (Normed, 24),
        pytest.param(Clipped, 24, marks=_slow),
        pytest.param(Gan, 24, marks=_slow),
        pytest.param(Seldom, 8, marks=_slow),
        pytest.param(Scaled, 0, marks=_slow),
    ],
)
def test_turns_in_a_burst_change_nothing_but_when_rows_are_written(
    make_engine: MakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    inside: set[tuple[int, int]],
    kind: type[Gan],
    own: int,
) -> None:
    engine = make_engine(device_path=True, budget=1.0, explain=False)
    short = Ended(engine, kind())
    assert len(inside) > own if own else not inside
    monkeypatch.setattr(StepBursts, "begin", lambda *_: None)
    engine = make_engine(device_path=True, budget=1.0, explain=False)
    short.is_like(Ended(engine, kind()))
    if kind in (Gan, Normed, Passes, Scaled):  # only the one whose loss it was
        assert (short.skipped(0), short.skipped(1)) == (list(BAD_D), list(BAD_G))
    if kind is Seldom:  # in none where they will not go on taking turns
        assert min(inside)[0] > 27
    if kind is Passes:
        assert {(BAD_D[0], 0), (BAD_D[0], 1), (BAD_G[0], 0), (BAD_G[0], 1)} <= inside

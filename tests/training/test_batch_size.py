"""The search for a batch size, and that the run does not notice it."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.errors import UsageError
from holdfast.run.host_memory import ran_out
from holdfast.training.batch_size import searching
from holdfast.training.batch_size.searching import SearchResult, Try, find_batch
from holdfast.training.batch_size.trial_step import TrialStep, resized

MIB = 2**20


def never_full() -> float:
    return math.inf


def search(most: int, **more: Any) -> tuple[SearchResult, list[str]]:
    """Search where sizes above ``most`` run out of memory."""
    said: list[str] = []

    def step(size: int) -> None:
        if size > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory at {size}")

    with pytest.MonkeyPatch.context() as patch:  # the search alone: cleaning up takes its time
        patch.setattr(searching, "_clean", lambda device: None)
        patch.setattr(searching, "_peak", lambda device, used: nullcontext(lambda: 0.0))
        found = find_batch(step, say=said.append, **{"budget_bytes": never_full, **more})
    return found, said


def sizes(found: SearchResult) -> list[int]:
    return [one.batch for one in found.tried]


def test_sizes_are_doubled_and_then_the_gap_is_halved():
    found, said = search(100, limit=10_000)
    assert sizes(found) == [1, 2, 4, 8, 16, 32, 64, 128, 96, 112, 104]
    assert found.batch == 96 and [one.batch for one in found.tried if not one.fits] == [
        128,
        112,
        104,
    ]
    assert found.why == "104 runs out of memory"
    assert len(said) == len(found.tried) + 1 and said[-1].startswith("batch size 96: 104 runs out")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 64))
def test_with_a_step_of_one_the_very_largest_is_found(most, limit, start):
    found, _ = search(most, limit=limit, start=min(start, limit), step=1)
    assert found.batch == min(most, limit)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 100_000), st.integers(1, 300))
def test_the_result_fits_and_is_within_an_eighth(most, start):
    found, _ = search(most, limit=1_000_000, start=start)
    assert found.batch <= most and most - found.batch <= max(1, found.batch // 8)


def test_the_limit_is_tried_and_not_passed():
    found, _ = search(10**9, limit=100)
    assert found.batch == 100 and max(sizes(found)) == 100
    assert found.why == "the largest that was asked for"


def test_a_start_that_does_not_fit_leads_down():
    found, _ = search(5, limit=256, start=64, step=1)
    assert found.batch == 5 and sizes(found)[:4] == [64, 32, 16, 8]


def test_nothing_that_fits_is_an_error_with_a_next_move():
    with pytest.raises(UsageError, match="not even 1 fits: 1 runs out of memory; make the model"):
        search(0, limit=64, start=8)


def test_a_start_beyond_the_limit_is_an_error():
    with pytest.raises(UsageError, match="start is 8, limit 4"):
        search(8, limit=4, start=8)


def test_errors_of_another_kind_get_out():
    def step(size: int) -> None:
        raise ValueError("not a matter of memory")

    with pytest.raises(ValueError, match="not a matter"):
        find_batch(step, limit=8, say=print)


def test_the_search_ends_when_patience_does():
    found, _ = search(10**9, limit=10**9, patience=0.0)
    assert found.batch == 1 and found.why == "no larger one was tried after 0 s"


def test_the_smallest_size_of_full_speed_is_reported(monkeypatch):
    # 10 ms a step up to 64 samples, and in proportion above.
    monkeypatch.setattr(searching._Search, "_timed", lambda self, size: 0.010 * max(1.0, size / 64))
    found, said = search(0, limit=512)
    assert found.batch == 512 and found.fastest == 64
    assert "6400 samples/s, reached from 64 up" in said[-1]


@pytest.mark.slow
def test_on_the_host_a_size_that_would_take_too_much_is_not_tried():
    made: list[int] = []

    def step(size: int) -> None:
        made.append(size)
        held = torch.ones(size * 4 * MIB, dtype=torch.uint8)
        for _ in range(8):
            held.add_(1)

    found = find_batch(step, start=4, limit=1024, budget_bytes=lambda: 100.0 * MIB, say=print)
    assert max(made) * 4 <= 128 and 8 <= found.batch <= 25
    refused = [one for one in found.tried if not one.fits]
    assert refused and all(one.batch not in made or one.peak > 100 * MIB for one in refused)
    largest = max(one for one in found.tried if one.fits)
    assert largest.peak > 0.5 * largest.batch * 4 * MIB


def test_memory_is_expected_to_grow_in_a_straight_line():
    step = searching._Search(lambda size: None, torch.device("cpu"), never_full, print)
    assert step._expected(8) == 0
    step.tried = [Try(4, 1.0, 100.0)]
    assert step._expected(8) == 200
    step.tried = [Try(4, 1.0, 100.0), Try(8, 1.0, 120.0), Try(16, math.nan, 500.0, False)]
    assert step._expected(12) == 140


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_reported_from_other_errors(error, expected):
    assert ran_out(error) is expected


def test_a_real_failure_to_allocate_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert ran_out(caught.value)


# ---------------------------------------------------------------------------- the trial


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def squared(model: nn.Module, batch: Any) -> Any:
    random.random()
    np.random.rand()
    return model(batch).square().mean(), {"more": 1.0}


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


@pytest.mark.slow
def test_a_trial_leaves_model_gradients_and_random_state_alone():
    model = Dropped().eval()
    state = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    seen: list[int] = []

    def batch_of(size: int) -> torch.Tensor:
        seen.append(size)
        if size > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.randn(size, 3)

    drawn = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # type: ignore[index]
    found = find_batch(
        TrialStep(model, squared, adam, batch_of),
        start=2,
        limit=64,
        budget_bytes=never_full,
        say=print,
    )
    assert found.batch == 8 and max(seen) == 16
    assert random.getstate() == drawn[0]
    assert np.random.get_state()[1].tolist() == drawn[1]  # type: ignore[index]
    assert torch.equal(torch.get_rng_state(), drawn[2])
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.eq(3.0).all()


def test_a_trial_really_steps_its_copy():
    made: list[nn.Module] = []

    def optimizer(model: nn.Module) -> torch.optim.Optimizer:
        made.append(model)
        return adam(model)

    model = Dropped()
    trial = TrialStep(model, squared, optimizer, lambda size: torch.ones(size, 3))
    trial(4)
    trial(8)
    assert len(made) == 1 and made[0] is not model and made[0].training
    weights = zip(model.parameters(), made[0].parameters(), strict=True)
    assert any(not torch.equal(own, theirs) for own, theirs in weights)


def test_a_model_that_cannot_be_copied_is_an_error_with_a_next_move():
    model = nn.Linear(2, 2)
    model.lock = (n for n in ())  # type: ignore[assignment]
    trial = TrialStep(model, squared, adam, lambda size: torch.ones(size, 2))
    with pytest.raises(UsageError, match=r"cannot be copied .*set data\.batch yourself"):
        trial(1)


class Pair(NamedTuple):
    x: torch.Tensor
    y: list[torch.Tensor]


@dataclasses.dataclass
class Sample:
    x: torch.Tensor
    name: str


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_batch_is_resized_whatever_it_is_made_of(size):
    x = torch.arange(6).reshape(3, 2)
    expected = torch.stack([x[n % 3] for n in range(size)])
    pair = resized(Pair(x, [x, torch.tensor(5)]), size)
    assert isinstance(pair, Pair) and torch.equal(pair.x, expected)
    assert torch.equal(pair.y[0], expected) and pair.y[1] == 5
    assert torch.equal(resized(Sample(x, "a"), size).x, expected)
    assert torch.equal(resized({"x": (x,)}, size)["x"][0], expected)

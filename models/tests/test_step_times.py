"""What a bench says of steps, and which of them it looks at."""

from __future__ import annotations

import time

import pytest
import torch

from holdfast_models import step_times as step_times_module
from holdfast_models.step_times import StepWatch, TimedSteps, step_times

CPU = torch.device("cpu")


def test_steps_near_the_median_and_what_the_guard_costs() -> None:
    times = TimedSteps(milliseconds=[10.0, 10.0, 10.9, 11.2, 20.0, 9.1, 10.0, 10.0], peak_gb=1.5)
    bare = TimedSteps(milliseconds=[9.0, 9.5, 100.0], peak_gb=1.0)
    reported = times.reported(64, "events", bare)
    assert reported["% of 8 steps within 10 %"] == 75.0
    assert reported["ms a step, median"] == 10.0 and reported["long steps, ms"] == {
        4: 11.2,
        5: 20.0,
    }
    assert reported["last long step"] == 5
    assert reported["events/s"] == pytest.approx(64 * 8 / 0.0912)
    assert reported["guard cost µs"] == pytest.approx(500.0)
    assert reported["guard cost %"] == pytest.approx(100 * 0.5 / 9.5)
    assert "guard cost %" not in times.reported(64, "events")


def test_only_steps_after_the_warm_up_are_timed() -> None:
    calls: list[int] = []

    def step() -> None:
        calls.append(1)
        time.sleep(0.2 if len(calls) <= 2 else 0.001)

    times = step_times(step, CPU, steps=5, warmup=2)
    assert len(calls) == 7 and len(times.milliseconds) == 5
    assert max(times.milliseconds) < 150 and not times.device and times.first == 3


def test_a_look_at_a_run_keeps_what_the_task_answers() -> None:
    watch = StepWatch(CPU, warm=1, steps=2)
    stepped = watch.around(lambda step: step == 2)
    assert [stepped(step) for step in range(1, watch.last + 1)] == [False, True, False]
    assert len(watch.times.milliseconds) == 2


def test_a_run_that_ends_early_has_no_rate() -> None:
    watch = StepWatch(CPU, warm=5, steps=2)
    watch.around()(1)
    assert watch.times.reported(1, "events") == {"events/s": None}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_waits_growth_and_launches_of_a_gpu_are_reported() -> None:
    x, kept = torch.ones(512, 512, device="cuda"), list[torch.Tensor]()

    def step() -> None:
        kept.append(x @ x)
        float(kept[-1][0, 0])

    reported = step_times(step, torch.device("cuda"), steps=20).reported(1, "steps")
    assert reported["host syncs in 10 steps"] == 10
    assert reported["MB grown in 20 steps"] == pytest.approx(20 * x.nbytes / 1e6, rel=0.1)
    assert 2 <= reported["launches a step"] <= 5 and 0 < reported["busy %"] <= 100


def test_products_of_a_step_beside_a_large_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_times_module, "_product_rate", lambda device, dtype: 12e12)
    reported = step_times_module.roofline(1e12, 500.0, torch.device("cpu"), torch.float32)
    assert reported == {"TFLOP/s of products": 6.0, "share of a large product %": 50.0}

"""What a run is said to take before it is built."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast.training import Place
from holdfast_models.liquid.forecast import forecast

CPU = Place(torch.device("cpu"))


def test_time_and_memory_grow_with_the_batch(settings_of: Any) -> None:
    few = forecast(settings_of("train.data.batch=4", "train.steps=10"), CPU)
    many = forecast(settings_of("train.data.batch=16", "train.steps=10"), CPU)
    assert few.steps == 10 and few.step_seconds is not None and few.step_seconds > 0
    assert many.step_seconds is not None and many.step_seconds > 2 * few.step_seconds
    assert many.memory["activations of 16 samples"] == 4 * few.memory["activations of 4 samples"]
    assert many.memory["weights and optimizer"] == few.memory["weights and optimizer"]
    words = forecast(settings_of("data.tokenizer=bpe", "train.data.batch=4"), CPU)
    assert words.memory["weights and optimizer"] > 2 * few.memory["weights and optimizer"]


def test_what_is_kept_is_what_a_step_takes(settings_of: Any) -> None:
    """Twice the tokens, twice the activations: memory is linear in the length."""
    short = forecast(settings_of("data.sequence_length=16", "train.data.batch=1"), CPU)
    long = forecast(settings_of("data.sequence_length=32", "train.data.batch=1"), CPU)
    name = "activations of 1 samples"
    assert long.memory[name] / short.memory[name] == pytest.approx(2.0, rel=0.25)


def test_nothing_is_drawn_and_of_other_tasks_nothing_is_said(settings_of: Any) -> None:
    before = torch.get_rng_state()
    forecast(settings_of(), CPU)
    assert torch.equal(before, torch.get_rng_state())
    assert forecast(settings_of("task=robotics"), CPU).lines(CPU) == []

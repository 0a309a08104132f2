"""How often a fault is looked into."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.config import GuardSettings
from holdfast.diagnosis.nonfinite import investigation, provenance
from holdfast.probes.batches import Batch
from holdfast.records.nonfinite import Cause


class Training:
    """Counts the steps, and keeps what is told."""

    def __init__(self) -> None:
        self.iteration = 0
        self.reported: list[int] = []

    def has_bad_gradient(self) -> bool:
        return False

    def step_context(self, batches: object, rng: object, loss: object) -> Any:
        return None

    def record_at(self, step: int, record: Any) -> None:
        self.reported.append(step)

    def explained(self, step: int, cause: Cause) -> None:
        self.reported.append(step)


class Run:
    """Bad steps, one after the other; profiles find what ``answers`` says for the step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[int, int]) -> None:
        self.training, self.profiles, self.answers = Training(), list[int](), answers
        monkeypatch.setattr(provenance, "of_loss", self._profile)
        monkeypatch.setattr(provenance, "spot", lambda _: "train.py:9")
        self.asked = investigation.Investigation(GuardSettings(), self.training, self._here)

    def _here(self) -> tuple[list[Batch], None]:
        return [Batch(None, [self.training.iteration], 0, None)], None

    def _profile(self, *_: object) -> Cause | None:
        step = self.training.iteration
        self.profiles.append(step)
        if step not in self.answers:
            return None
        samples = ((0, self.answers[step]),)
        return Cause(how="replay", phase="input", file="train.py", line=9, samples=samples)

    def bad(self, *steps: int) -> None:
        for step in steps:
            self.training.iteration = step
            self.asked.loss_is_bad(None)
            self.asked.step_is_bad(None, 0, step, None, [])
            self.asked.step_ends()


def test_equal_bad_steps_in_a_row_are_looked_into_once_and_then_counted(monkeypatch):
    """A state that carries the NaN on: every later step is bad for the same reason."""
    run = Run(monkeypatch, {3: 3})
    run.bad(*range(3, 50))
    assert run.profiles == [3, 4]


def test_another_sample_is_found_after_good_steps_and_in_a_row(monkeypatch):
    run = Run(monkeypatch, {3: 3, 4: 4, 5: 5, 20: 20})
    run.bad(3, 4, 5, 6, 7, 8, 20)
    assert run.profiles == [3, 4, 5, 6, 20]

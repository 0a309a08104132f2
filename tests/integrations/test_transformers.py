"""The callback in the Trainer of Transformers, with accumulation: the sample of the window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.report import summarize
from holdfast.run import LaneReader

from .conftest import finite, framework, same_weights

pytestmark = [pytest.mark.usefixtures("untouched"), pytest.mark.filterwarnings("ignore")]

POISONED = 9


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scale = labels.abs().log()  # HERE
        return {"loss": (self.head(x) * scale - labels).square().mean()}


class Parts:
    def __init__(self) -> None:
        self.transformers, form = framework("transformers", "transformers")
        self.transformers.utils.logging.set_verbosity_error()
        self.callback = form.HoldfastCallback

    def train(self, folder: Path, callbacks: list[Any], *, poisoned: bool = False) -> Any:
        """One epoch of six steps of two batches of four samples."""
        torch.manual_seed(0)
        x = torch.randn(48, 4)
        rows = [{"x": one, "labels": one.sum().reshape(1)} for one in x]
        if poisoned:
            rows[POISONED]["labels"] = torch.zeros(1)
        arguments = self.transformers.TrainingArguments(
            output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=1,
            gradient_accumulation_steps=2, report_to="none", save_strategy="no",
            logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
        )  # fmt: skip
        model = Model()
        trainer = self.transformers.Trainer(
            model=model, args=arguments, train_dataset=rows, callbacks=callbacks
        )
        trainer.remove_callback(self.transformers.PrinterCallback)
        trainer.train()
        assert trainer.state.global_step == 6
        return model


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


def test_a_poisoned_sample_is_skipped_and_explained(
    tmp_path: Path, parts: Parts, assert_explained: Callable[..., None]
) -> None:
    said: list[str] = []
    guard = parts.callback(run_dir=tmp_path / "run", say=said.append)
    assert finite(parts.train(tmp_path, [guard], poisoned=True))
    assert guard.skipped == 1 and guard.run is not None
    rows = LaneReader(guard.run, "r0").steps()
    assert rows["step"].tolist() == list(range(6)) and set(rows["backwards"]) == {2.0}
    (finding,) = guard.findings
    assert_explained(finding, Model.forward, POISONED)
    page = tmp_path / "run" / "report.html"
    assert page.is_file() and summarize(guard.run).outcome == "finished"
    assert [str(page) in line for line in said].count(True) == 1


def test_a_healthy_run_ends_with_the_same_bits(tmp_path: Path, parts: Parts) -> None:
    guard = parts.callback(run_dir=tmp_path / "run", quiet=True)
    plain, guarded = parts.train(tmp_path, []), parts.train(tmp_path, [guard])
    assert same_weights(plain, guarded)
    assert guard.findings == [] and guard.run is not None


def test_after_an_exception_the_guard_is_closed_by_hand(tmp_path: Path, parts: Parts) -> None:
    guard = parts.callback(run_dir=tmp_path / "run", quiet=True)

    class Fails(parts.transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            raise ValueError("a fault of the user's own")

    with pytest.raises(ValueError, match="fault of the user's own"):
        parts.train(tmp_path, [guard, Fails()])
    guard.close()

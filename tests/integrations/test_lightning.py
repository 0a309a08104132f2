"""The callback in Lightning's own loop: a poisoned batch costs a step, a healthy run nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.report import summarize
from holdfast.run import LaneReader

from .conftest import finite, framework, same_weights

pytestmark = [pytest.mark.usefixtures("untouched"), pytest.mark.filterwarnings("ignore")]

POISONED = 21


class Parts:
    """Lightning, our callback, and a module that takes the logarithm of its targets."""

    def __init__(self) -> None:
        lightning, form = framework("lightning", "lightning")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self.lightning, self.callback = lightning, form.HoldfastCallback

        class Regression(lightning.LightningModule):
            def __init__(self, fails_at: int = -1) -> None:
                super().__init__()
                layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)
                self.net = torch.nn.Sequential(*layers)
                self.fails_at = fails_at

            def training_step(self, batch: Any, index: int) -> torch.Tensor:
                x, y = batch
                if index == self.fails_at:
                    raise ValueError("a fault of the user's own")
                scale = y.abs().log()  # HERE
                return (self.net(x) * scale - y).square().mean()

            def validation_step(self, batch: Any, index: int) -> None:
                self.log("val", self.net(batch[0]).mean())

            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
                return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

        self.module = Regression

    def fit(self, callbacks: list[Any], *, poisoned: bool = False, **given: Any) -> Any:
        """Two epochs of eight batches, the second after a validation."""
        torch.manual_seed(0)
        x = torch.randn(64, 4)
        y = x.sum(1, keepdim=True)
        if poisoned:
            y[POISONED] = 0.0
        data = TensorDataset(x, y)
        model = self.module(**given)
        trainer = self.lightning.Trainer(
            max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0,
            callbacks=callbacks,
        )  # fmt: skip
        trainer.fit(model, DataLoader(data, 8, shuffle=True), DataLoader(data, 32))
        return model


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


def test_a_poisoned_batch_is_skipped_and_explained(
    tmp_path: Path, parts: Parts, assert_explained: Callable[..., None]
) -> None:
    said: list[str] = []
    guard = parts.callback(run_dir=tmp_path / "run", say=said.append)
    model = parts.fit([guard], poisoned=True)
    assert finite(model)
    assert guard.skipped == 2 and guard.run is not None
    rows = LaneReader(guard.run, "r0").steps()
    assert rows["step"].tolist() == list(range(16))
    (finding,) = guard.findings
    assert_explained(finding, parts.module.training_step, POISONED)
    page = tmp_path / "run" / "report.html"
    assert page.is_file() and summarize(guard.run).outcome == "finished"
    assert [str(page) in line for line in said].count(True) == 1
    assert "NUM001" in guard._repr_html_() and "NUM001" in guard.report()


def test_a_healthy_run_ends_with_the_same_bits(tmp_path: Path, parts: Parts) -> None:
    guard = parts.callback(run_dir=tmp_path / "run", quiet=True)
    assert same_weights(parts.fit([]), parts.fit([guard]))
    assert guard.findings == [] and guard.skipped == 0


def test_an_exception_goes_through_and_ends_the_guard(tmp_path: Path, parts: Parts) -> None:
    guard = parts.callback(run_dir=tmp_path / "run", quiet=True)
    with pytest.raises(ValueError, match="fault of the user's own"):
        parts.fit([guard], fails_at=5)
    assert guard.run is not None and summarize(guard.run).outcome == "interrupted"


def test_a_guard_that_cannot_start_does_not_end_the_training(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.boot import patches

    def broken(engine_of: object) -> None:
        raise LookupError("torch has no such thing")

    monkeypatch.setattr(patches, "install", broken)
    said: list[str] = []
    guard = parts.callback(say=said.append)
    assert finite(parts.fit([guard]))
    assert said == [
        "holdfast: could not start (torch has no such thing); the training runs unguarded"
    ]
    assert guard.run is None and guard.findings == [] and "No steps yet" in guard._repr_html_()

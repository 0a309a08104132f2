"""Three steps at a wrong rate ruin the weights: each framework's own loop is rolled back."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.faults.loss_spike import BATCH, SCHEDULE, make_signals

from .conftest import framework

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("untouched"),
    pytest.mark.filterwarnings("ignore"),
]


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Linear(24, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 1)
    return nn.Sequential(*layers)


class Rates:
    """The schedule with the fault."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer, self._step = optimizer, 0

    def next(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = SCHEDULE.get(self._step, group["lr"])
        self._step += 1


def rolled_back(guard: Any) -> bool:
    spikes = [finding for finding in guard.findings if finding.code == "OPT001"]
    return [finding.action for finding in spikes] == ["rollback"]


def loader(data: TensorDataset) -> DataLoader[Any]:
    return DataLoader(data, BATCH, shuffle=True)


def test_accelerate(tmp_path: Path) -> None:
    accelerate, form = framework("accelerate", "accelerate")
    net: Any = network()
    accelerator = accelerate.Accelerator(cpu=True)
    net, opt, batches = accelerator.prepare(
        net, torch.optim.Adam(net.parameters(), lr=SCHEDULE[0]), loader(make_signals())
    )
    rates, losses = Rates(opt), list[float]()
    with form.watch(accelerator, run_dir=tmp_path / "run", quiet=True) as guard:
        for _ in range(3):
            for x, y in batches:
                rates.next()
                opt.zero_grad()
                loss = nn.functional.mse_loss(net(x), y)
                accelerator.backward(loss)
                opt.step()
                losses.append(loss.item())
    assert rolled_back(guard) and losses[-1] < 0.4


def test_lightning(tmp_path: Path) -> None:
    lightning, form = framework("lightning", "lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    losses: list[float] = []

    class Regression(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.rates.next()
            loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=SCHEDULE[0])
            self.rates = Rates(optimizer)
            return optimizer

    guard = form.HoldfastCallback(run_dir=tmp_path / "run", quiet=True)
    trainer = lightning.Trainer(
        max_epochs=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[guard],
    )  # fmt: skip
    trainer.fit(Regression(), loader(make_signals()))
    assert rolled_back(guard) and losses[-1] < 0.4


def test_transformers(tmp_path: Path) -> None:
    transformers, form = framework("transformers", "transformers")
    transformers.utils.logging.set_verbosity_error()
    losses: list[float] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            loss = nn.functional.mse_loss(self.net(x), labels)
            losses.append(loss.item())
            return {"loss": loss}

    class Faulty(transformers.TrainerCallback):
        def on_train_begin(self, *given: Any, optimizer: Any = None, **more: Any) -> None:
            self.rates = Rates(optimizer)

        def on_pre_optimizer_step(self, *given: Any, **more: Any) -> None:
            self.rates.next()

    model = Model()
    guard = form.HoldfastCallback(run_dir=tmp_path / "run", quiet=True)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=BATCH, num_train_epochs=3,
        report_to="none", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        use_cpu=True, seed=0, lr_scheduler_type="constant", max_grad_norm=0,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=[{"x": x, "labels": y} for x, y in make_signals()],
        callbacks=[guard, Faulty()],
        optimizers=(torch.optim.Adam(model.parameters(), lr=SCHEDULE[0]), None),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    assert rolled_back(guard) and losses[-1] < 0.4

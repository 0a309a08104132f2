"""Lightning, Transformers and Accelerate, unmodified: a poisoned batch costs one step, and the
finding names the line and the sample."""

from __future__ import annotations

import math

import pytest

from .conftest import Bench

LIGHTNING = """
import warnings
warnings.filterwarnings("ignore")
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

class Regression(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(),
            torch.nn.Linear(16, 1))
        self.steps = 0
    def training_step(self, batch, index):
        x, y = batch
        self.steps += 1
        rare = y.abs().log().mean()  # HERE
        return torch.nn.functional.mse_loss(self.net(x), y) + 0.0 * rare
    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

torch.set_num_threads(1)
L.seed_everything(0, verbose=False)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
x[37, 3] = float("nan")
y[70] = 0.0
model = Regression()
trainer = L.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False,
                    enable_checkpointing=False, enable_progress_bar=False,
                    enable_model_summary=False, gradient_clip_val=1.0)
trainer.fit(model, DataLoader(TensorDataset(x, y), batch_size=8))
state = model.state_dict()
print(model.steps, trainer.global_step, all(bool(v.isfinite().all()) for v in state.values()))
clean = torch.cat([x[:37], x[38:]])
model.eval()
print(torch.nn.functional.mse_loss(model.net(clean), clean.sum(1, keepdim=True)).item())
"""


def marked(script: str) -> int:
    """The line of a script that is to blame."""
    return next(i for i, line in enumerate(script.splitlines(), 1) if "# HERE" in line)


@pytest.mark.slow
def test_lightning(bench: Bench):
    seen = bench.guarded(bench.write(LIGHTNING), options=[])
    assert seen.code == 0, seen.reported
    assert seen.lines[-2] == "32 32 True"
    assert math.isfinite(float(seen.lines[-1]))
    record = bench.record
    assert record.lanes == ["r0"]
    assert list(record.steps()["step"]) == list(range(32))
    assert record.skipped() == [4, 8, 20, 24]
    found = {finding.code: finding for finding in record.findings()}
    assert set(found) >= {"NUM001", "NUM005"}
    assert (found["NUM005"].step, found["NUM005"].evidence["count"]) == (4, 2)
    assert record.lane().batches[0]["bad"][0][2] == [37]
    assert (found["NUM001"].step, found["NUM001"].line) == (8, marked(LIGHTNING))
    assert found["NUM001"].evidence["samples"] == [70]
    how = record.events("optimizer")[0].data
    assert how["how"] == "hidden gradients" and how["layers"][0] == "net.0.weight"
    assert "not covered" not in seen.reported
    rates = [round(float(lr), 6) for lr in record.steps()["lr"]]
    assert rates == [0.01] * 16 + [0.001] * 16


TRANSFORMERS = """
import warnings
warnings.filterwarnings("ignore")
import os, sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.utils import logging
logging.set_verbosity_error()

torch.set_num_threads(1)
torch.manual_seed(0)
config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2,
                    bos_token_id=0, eos_token_id=0)
class Poisoned(GPT2LMHeadModel):
    def forward(self, input_ids=None, labels=None, **more):
        out = super().forward(input_ids=input_ids, labels=labels, **more)
        if self.training and bool((input_ids == 31).any()):
            out.loss = out.loss * float("nan")  # HERE
        return out

model = Poisoned(config)
data = [{"input_ids": torch.arange(i, i + 8) % 30} for i in range(64)]
for row in data:
    row["labels"] = row["input_ids"].clone()
data[18]["input_ids"] = data[18]["labels"] = torch.full((8,), 31)
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, num_train_epochs=2, report_to="none",
    save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True, seed=0,
    gradient_accumulation_steps=2, dataloader_num_workers=0)
class InOrder(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)
trainer = InOrder(model=model, args=arguments, train_dataset=data)
result = trainer.train()
print(trainer.state.global_step, all(bool(p.isfinite().all()) for p in model.parameters()))
"""


@pytest.mark.slow  # importing it takes longer than all of the training
def test_transformers(bench: Bench):
    """64 samples, 4 a batch, 2 batches a step: 8 steps an epoch, sample 18 is in step 2."""
    script = bench.write(TRANSFORMERS)
    seen = bench.guarded(script, "out", env={"HF_HUB_OFFLINE": "1"})
    assert seen.code == 0, seen.reported
    assert seen.lines[-1] == "16 True"
    record = bench.record
    assert record.lanes == ["r0"]
    assert list(record.steps()["step"]) == list(range(16))
    assert record.skipped() == [2, 10]
    assert set(record.steps()["backwards"]) == {2.0}
    finding = record.findings()[0]
    assert (finding.code, finding.step, finding.evidence["count"]) == ("NUM001", 2, 2)
    assert finding.line == marked(TRANSFORMERS)
    # Batches are fetched ahead here; one that is named must be the poisoned one.
    for batch in record.lane().batches:
        assert not batch["indices"] or 18 in batch["indices"]


ACCELERATE = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
y[37] = 0.0
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1))
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
net, optimizer, loader = accelerator.prepare(
    net, torch.optim.AdamW(net.parameters(), lr=1e-2), DataLoader(TensorDataset(x, y), 8))
for epoch in range(2):
    for x, y in loader:
        with accelerator.accumulate(net):
            scale = y.abs().log()  # HERE
            loss = (net(x) * scale - y).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
print(all(bool(value.isfinite().all()) for value in net.state_dict().values()))
"""


@pytest.mark.slow
def test_accelerate(bench: Bench):
    """128 samples, 8 a batch, 2 batches a step: sample 37 is in the first batch of step 2."""
    seen = bench.guarded(bench.write(ACCELERATE))
    assert seen.code == 0, seen.reported
    assert seen.lines[-1] == "True"
    record = bench.record
    assert list(record.steps()["step"]) == list(range(16))
    assert record.skipped() == [2, 10]
    finding = record.findings()[0]
    assert (finding.code, finding.step, finding.evidence["count"]) == ("NUM001", 2, 2)
    assert finding.line == marked(ACCELERATE)
    assert finding.evidence["samples"] == [37]

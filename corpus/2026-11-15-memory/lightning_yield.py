"""Crop-yield regression with a Lightning module."""

import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class YieldModel(L.LightningModule):
    def __init__(self, n_features, width=256):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_features, width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Sequential(nn.GELU(), nn.Linear(width, 1))
        self.training_step_outputs = []
        self.validation_step_outputs = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        hidden = self.trunk(x)
        pred = self.head(hidden).squeeze(-1)
        loss = F.huber_loss(pred, y)
        self.training_step_outputs.append(
            {"loss": loss.detach(), "pred": pred.detach(), "hidden": hidden.detach(), "y": y}
        )
        return loss

    def on_train_epoch_end(self):
        outs = self.training_step_outputs
        pred = torch.cat([o["pred"] for o in outs])
        y = torch.cat([o["y"] for o in outs])
        spread = torch.stack([o["hidden"].std(dim=0).mean() for o in outs]).mean()
        r2 = 1 - (pred - y).square().sum() / (y - y.mean()).square().sum()
        loss = torch.stack([o["loss"] for o in outs]).mean()
        print(f"epoch {self.current_epoch} loss {loss:.4f} r2 {r2:.3f} spread {spread:.3f}")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        error = F.l1_loss(self.head(self.trunk(x)).squeeze(-1), y)
        self.validation_step_outputs.append(error)

    def on_validation_epoch_end(self):
        mae = torch.stack(self.validation_step_outputs).mean()
        self.validation_step_outputs.clear()
        print(f"  validation mae {mae:.4f}")

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def fields(n, n_features=40):
    x = torch.randn(n, n_features)
    rain, heat, soil = x[:, 0], x[:, 1], x[:, 2:8].mean(1)
    y = 2 * torch.tanh(rain) - 0.7 * heat.square() + soil * rain + 0.1 * torch.randn(n)
    return TensorDataset(x, (y - y.mean()) / y.std())


def main():
    L.seed_everything(8, verbose=False)
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=tempfile.mkdtemp(),
    )
    train = DataLoader(fields(25600), batch_size=512, shuffle=True)
    val = DataLoader(fields(2048), batch_size=512)
    trainer.fit(YieldModel(40), train, val)


if __name__ == "__main__":
    main()

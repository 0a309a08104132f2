"""Crop yield from monthly satellite bands, Lightning version."""

import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class YieldModel(L.LightningModule):
    def __init__(self, bands=8, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.conv = nn.Sequential(
            nn.Conv1d(bands, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(64, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, 1)

    def forward(self, x):
        return self.head(self.conv(x).mean(-1)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        prediction = self(x)
        self.log("val_mae", (prediction - y).abs().mean())

    def on_validation_epoch_end(self):
        self.history.append(self.trainer.callback_metrics["val_mae"].item())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def fields(count, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, 36, generator=gen)
    y = x[:, 0].mean(-1) * 4 + (x[:, 1] * x[:, 2]).mean(-1) * 3 + x[:, 3, 12:20].mean(-1)
    return TensorDataset(x, y)


def main():
    torch.set_num_threads(1)
    L.seed_everything(0)
    train = DataLoader(fields(4640, 1), batch_size=64, shuffle=True)
    val = DataLoader(fields(2304, 2), batch_size=64)
    model = YieldModel()
    model.history = []
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        val_check_interval=5,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tempfile.mkdtemp(prefix="yield_"),
    )
    trainer.fit(model, train, val)
    print("validation mae, first and last:", model.history[0], model.history[-1])


if __name__ == "__main__":
    main()

"""Next-hour volatility of a traded share from minute bars (Lightning)."""
import logging
import warnings

import lightning as L
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

WINDOW, HORIZON = 32, 16
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")


def simulate_tape(minutes, seed):
    """Price in cents per minute, with volatility clusters and trading pauses."""
    rng = np.random.default_rng(seed)
    price = np.empty(minutes, dtype=np.float32)
    level, vol, pause = 5000.0, 4.0, 0
    for t in range(minutes):
        vol = max(1.0, vol + 0.05 * (4.0 - vol) + 0.5 * rng.standard_normal())
        if pause == 0 and rng.random() < 0.0004:
            pause = int(rng.integers(8, 37))
        if pause > 0:
            pause -= 1
        else:
            level = max(500.0, level + vol * rng.standard_normal())
        price[t] = round(level)
    return price


class Tape(Dataset):
    def __init__(self, price):
        self.price = price
        self.last = len(price) - WINDOW - HORIZON

    def __len__(self):
        return self.last // 2

    def __getitem__(self, i):
        t = 2 * i
        window = self.price[t:t + WINDOW]
        future = self.price[t + WINDOW - 1:t + WINDOW + HORIZON]
        shape = (window - window.mean()) / window.std()
        moves = np.diff(window, prepend=window[:1]) / 10.0
        target = np.log1p(np.abs(np.diff(future)).mean())
        x = np.stack([shape, moves]).astype(np.float32)
        return torch.from_numpy(x), torch.tensor(target, dtype=torch.float32)


class Forecaster(L.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.rnn = nn.GRU(2, width, batch_first=True)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.seen = []

    def forward(self, x):
        out, _ = self.rnn(x.transpose(1, 2))
        return self.head(out[:, -1]).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.smooth_l1_loss(self(x), y)
        self.seen.append(loss.detach())
        return loss

    def on_train_epoch_end(self):
        print(f"epoch {self.current_epoch}  train {torch.stack(self.seen).mean().item():.4f}")
        self.seen.clear()

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", nn.functional.smooth_l1_loss(self(x), y))

    def on_validation_epoch_end(self):
        print(f"validation {self.trainer.callback_metrics['val'].item():.4f}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(9)
    train = DataLoader(Tape(simulate_tape(12000, seed=1)), batch_size=64, shuffle=True)
    valid = DataLoader(Tape(simulate_tape(1500, seed=2)), batch_size=128)
    trainer = L.Trainer(max_epochs=3, accelerator="cpu", devices=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(Forecaster(), train, valid)


if __name__ == "__main__":
    main()

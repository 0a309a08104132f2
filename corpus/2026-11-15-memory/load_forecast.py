"""Six-hour forecast of an electricity load curve with an autoregressive GRU decoder."""

import math
import random

import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)

CONFIG = {
    "seed": 11,
    "context": 48,
    "horizon": 6,
    "hidden": 128,
    "batch": 160,
    "iterations": 260,
    "lr": 2e-3,
    "teacher_forcing": 0.5,
}


def synth_load(hours, rng):
    t = np.arange(hours)
    daily = np.sin(2 * math.pi * t / 24) + 0.4 * np.sin(4 * math.pi * t / 24 + 0.7)
    weekly = 0.5 * np.sin(2 * math.pi * t / 168)
    return (daily + weekly + 0.1 * rng.standard_normal(hours)).astype(np.float32)


class ForecastNet(nn.Module):
    def __init__(self, context, hidden):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(context, hidden), nn.ReLU(), nn.Linear(hidden, hidden)
        )
        self.decoder = nn.GRUCell(1, hidden)
        self.head = nn.Linear(hidden, 1)

    def forward(self, context, target, forcing):
        h = torch.tanh(self.encoder(context))
        inp, preds = context[:, -1:], []
        for t in range(target.shape[1]):
            h = self.decoder(inp, h)
            y = self.head(h)
            preds.append(y)
            inp = target[:, t : t + 1] if random.random() < forcing else y
        return torch.cat(preds, dim=1)


class ForecastTrainer:
    def __init__(self, cfg):
        self.cfg = cfg
        random.seed(cfg["seed"])
        torch.manual_seed(cfg["seed"])
        self.rng = np.random.default_rng(cfg["seed"])
        self.series = torch.from_numpy(synth_load(24 * 365, self.rng))
        self.model = ForecastNet(cfg["context"], cfg["hidden"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=cfg["lr"])
        self.criterion = nn.SmoothL1Loss()
        self.history = {"train": {"loss": [], "lr": []}, "val": {"loss": []}}

    def batch(self):
        span = self.cfg["context"] + self.cfg["horizon"]
        starts = self.rng.integers(0, len(self.series) - span, self.cfg["batch"])
        windows = torch.stack([self.series[s : s + span] for s in starts])
        return windows.split([self.cfg["context"], self.cfg["horizon"]], dim=1)

    def train_step(self):
        context, target = self.batch()
        pred = self.model(context, target, self.cfg["teacher_forcing"])
        loss = self.criterion(pred, target)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.history["train"]["loss"].append(loss)
        self.history["train"]["lr"].append(self.optimizer.param_groups[0]["lr"])

    @torch.no_grad()
    def validate(self):
        context, target = self.batch()
        loss = self.criterion(self.model(context, target, 0.0), target)
        self.history["val"]["loss"].append(loss.item())

    def fit(self):
        for it in range(self.cfg["iterations"]):
            self.train_step()
            if (it + 1) % 52 == 0:
                self.validate()
                recent = torch.stack(self.history["train"]["loss"][-52:]).mean().item()
                print(f"it {it + 1}: train {recent:.4f} val {self.history['val']['loss'][-1]:.4f}")


if __name__ == "__main__":
    ForecastTrainer(CONFIG).fit()

"""Six hour temperature forecast for a network of weather stations (transformers Trainer)."""
import math

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

HISTORY, AHEAD, STATIONS, BATCH = 24, 6, 16, 32
HOURS = 760


def raw_feed(seed):
    """What the loggers send: (value, unit) per hour and station."""
    rng = np.random.default_rng(seed)
    t = np.arange(HOURS)
    offset = rng.normal(9.0, 4.0, STATIONS)
    phase = rng.normal(0.0, 0.4, STATIONS)
    front = np.cumsum(rng.normal(0.0, 0.35, HOURS))
    front -= np.linspace(0, front[-1], HOURS)
    celsius = (offset[None] + 5.0 * np.sin(2 * math.pi * t[:, None] / 24 + phase[None])
               + front[:, None] + rng.normal(0, 0.4, (HOURS, STATIONS)))
    unit = np.full((HOURS, STATIONS), "C", dtype="<U1")
    unit[:, 3] = unit[:, 11] = "F"          # two stations of an American make
    unit[520:536, :] = "K"                  # network served by the backup collector
    value = celsius.copy()
    value[unit == "F"] = celsius[unit == "F"] * 9 / 5 + 32
    value[unit == "K"] = celsius[unit == "K"] + 273.15
    return value, unit


def harmonise(value, unit):
    """All stations to a common scale, roughly zero mean and unit variance."""
    out = np.where(unit == "F", (value - 32) * 5 / 9, value)
    return ((out - 9.0) / 6.0).astype(np.float32)


class Windows(Dataset):
    """Chronological: one item per hour and station, stations inner."""

    def __init__(self, series):
        self.series = series
        self.hours = len(series) - HISTORY - AHEAD

    def __len__(self):
        return self.hours * STATIONS

    def __getitem__(self, i):
        h, s = divmod(i, STATIONS)
        past = self.series[h:h + HISTORY, s]
        future = self.series[h + HISTORY + AHEAD - 1, s]
        clock = 2 * math.pi * (h % 24) / 24
        x = np.concatenate([past, [math.sin(clock), math.cos(clock)]]).astype(np.float32)
        return {"features": torch.from_numpy(x), "labels": torch.tensor(future)}


class ForecastNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(HISTORY + 2, width), nn.ReLU(),
                                 nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, features, labels=None):
        pred = self.net(features).squeeze(-1)
        loss = nn.functional.mse_loss(pred, labels) if labels is not None else None
        return {"loss": loss, "logits": pred}


class OnlineTrainer(Trainer):
    """Trains on the feed in the order in which it came in."""

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step:4d}  mse {logs['loss']}")


def main():
    torch.manual_seed(5)
    value, unit = raw_feed(seed=14)
    data = Windows(harmonise(value, unit))
    args = TrainingArguments(
        output_dir="/tmp/station_temps", per_device_train_batch_size=BATCH, num_train_epochs=1,
        learning_rate=2e-3, lr_scheduler_type="constant", logging_steps=20, save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True, max_grad_norm=0.0, seed=5,
    )
    trainer = OnlineTrainer(model=ForecastNet(), args=args, train_dataset=data, callbacks=[Report()])
    trainer.train()


if __name__ == "__main__":
    main()

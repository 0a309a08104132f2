import math
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

torch.set_num_threads(1)

SAMPLES = 1000


class WaveformStream(IterableDataset):
    """Three-component station records, mixed through a buffer before batching."""

    def __init__(self, records, buffer_size=96, seed=0):
        self.records = records
        self.buffer_size = buffer_size
        self.seed = seed

    def source(self, worker, workers):
        t = np.arange(SAMPLES) / 100.0
        for i in range(worker, self.records, workers):
            rng = np.random.default_rng((self.seed, i))
            trace = 0.3 * rng.standard_normal((3, SAMPLES)).astype(np.float32)
            event = i % 5 < 2
            if event:
                onset = rng.uniform(2, 7)
                envelope = np.where(t > onset, np.exp(-(t - onset) / 1.5), 0.0)
                wave = np.sin(2 * math.pi * rng.uniform(2, 5) * (t - onset))
                trace += (rng.uniform(0.8, 2.0, (3, 1)) * envelope * wave).astype(np.float32)
            yield trace, np.float32(event)

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        pick = random.Random(self.seed + worker)
        pool = []
        for record in self.source(worker, workers):
            pool.append(record)
            if len(pool) >= self.buffer_size:
                yield pool[pick.randrange(len(pool))]


class Picker(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(3, 12, 11, stride=4),
            nn.ReLU(),
            nn.Conv1d(12, 24, 7, stride=4),
            nn.ReLU(),
            nn.AdaptiveMaxPool1d(4),
            nn.Flatten(),
            nn.Linear(96, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    torch.manual_seed(23)
    loader = DataLoader(WaveformStream(12_800), batch_size=96, num_workers=2)
    model = Picker()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    bce = nn.BCEWithLogitsLoss()
    hits = seen = 0
    for step, (trace, event) in enumerate(loader):
        logits = model(trace)
        loss = bce(logits, event)
        opt.zero_grad()
        loss.backward()
        opt.step()
        hits += ((logits > 0) == event.bool()).sum().item()
        seen += len(event)
        if step % 25 == 24:
            print(f"batch {step + 1}: loss {loss.item():.4f} accuracy {hits / seen:.3f}")
            hits = seen = 0


if __name__ == "__main__":
    main()

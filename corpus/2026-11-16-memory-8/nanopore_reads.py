"""Detects modified bases in simulated nanopore current traces, streamed from worker processes."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

READ = 1500
CHANNELS = 4
BATCH = 32
STEPS = 240


class Squiggles(IterableDataset):
    """Endless reads. Reads of one pore come in runs, so they go through a shuffle buffer."""

    def __init__(self, seed, warm=200):
        self.seed = seed
        self.warm = warm

    def pore(self, rng):
        """A run of reads from one pore, which share offset and drift."""
        offset = rng.normal(0, 0.3, (CHANNELS, 1)).astype(np.float32)
        drift = np.linspace(0, rng.normal(0, 0.2), READ, dtype=np.float32)
        for _ in range(int(rng.integers(5, 20))):
            signal = rng.standard_normal((CHANNELS, READ), dtype=np.float32) * 0.5 + offset + drift
            label = int(rng.integers(2))
            if label:
                at = int(rng.integers(50, READ - 150))
                signal[:, at:at + 100] += np.hanning(100).astype(np.float32) * 1.2
            yield signal, label

    def reads(self, rng):
        while True:
            yield from self.pore(rng)

    def __iter__(self):
        info = get_worker_info()
        rng = np.random.default_rng((self.seed, info.id if info else 0))
        buffer = []
        for read in self.reads(rng):
            buffer.append(read)
            if len(buffer) < self.warm:
                continue
            pick = int(rng.integers(len(buffer)))
            buffer[pick], buffer[-1] = buffer[-1], buffer[pick]
            yield buffer[-1]


def collate(reads):
    signals, labels = zip(*reads)
    return torch.from_numpy(np.stack(signals)), torch.tensor(labels, dtype=torch.float32)


class ModCaller(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(CHANNELS, 12, 15, stride=6), nn.GELU(),
            nn.Conv1d(12, 24, 9, stride=3), nn.GELU(),
        )
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return self.out(self.conv(x).amax(-1)).squeeze(-1)


def main():
    torch.manual_seed(41)
    loader = DataLoader(Squiggles(seed=42), batch_size=BATCH, num_workers=2, collate_fn=collate,
                        prefetch_factor=2)
    model = ModCaller()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=30)
    loss_fn = nn.BCEWithLogitsLoss()
    acc, total = 0.0, 0.0
    for step, (x, y) in enumerate(loader):
        logits = model(x)
        loss = loss_fn(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        warmup.step()
        acc += ((logits > 0) == (y > 0.5)).float().mean().item()
        total += loss.item()
        if (step + 1) % 40 == 0:
            print(f"step {step + 1:4d}  loss {total / 40:.3f}  accuracy {acc / 40:.3f}")
            acc = total = 0.0
        if step + 1 == STEPS:
            break


if __name__ == "__main__":
    main()

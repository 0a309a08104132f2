"""Species from spectrograms of bird song; recordings of two seasons, one season per process."""
import bz2

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
SPECIES, BANDS, FRAMES, CLIPS = 6, 48, 120, 96


def record(season):
    rng = np.random.default_rng(season)
    songs = np.random.default_rng(77).normal(0, 1, (SPECIES, BANDS, FRAMES))
    labels = rng.integers(0, SPECIES, CLIPS)
    return [(songs[k] + rng.normal(0, 1.5, (BANDS, FRAMES))).astype(np.float32) for k in labels], labels


class Season(Dataset):
    """The first season lies on disk as recorded, the second as it came from the archive."""

    def __init__(self, season):
        clips, self.labels = record(season)
        self.packed = season == 1
        self.clips = [bz2.compress(c.tobytes(), 9) if self.packed else c.tobytes() for c in clips]

    def __len__(self):
        return 12 * CLIPS * 2

    def __getitem__(self, i):
        raw = self.clips[i % CLIPS]
        if self.packed:
            raw = bz2.decompress(raw)
        clip = np.frombuffer(raw, dtype=np.float32).reshape(1, BANDS, FRAMES).copy()
        return torch.from_numpy(clip), int(self.labels[i % CLIPS])


class SongNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 5, stride=3), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(4))
        self.out = nn.Linear(16 * 16, SPECIES)

    def forward(self, x):
        return self.out(self.conv(x).flatten(1))


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(3)
        self.model = DDP(SongNet())
        self.loader = DataLoader(Season(rank), batch_size=8, shuffle=True,
                                 generator=torch.Generator().manual_seed(rank))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)

    def epoch(self, number):
        total = 0.0
        for clips, labels in self.loader:
            loss = nn.functional.cross_entropy(self.model(clips), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        if self.rank == 0:
            print(f"epoch {number} loss {total / len(self.loader):.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer(dist.get_rank())
    for number in range(1):
        trainer.epoch(number)
    dist.destroy_process_group()

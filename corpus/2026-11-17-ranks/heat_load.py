"""Heat load of a district from weather history (GRU)."""
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
HISTORY, EPOCHS, BATCH = 36, 3, 24
BASE_LR = 1e-3


class LoadCurve(Dataset):
    def __init__(self, hours=4200):
        gen = torch.Generator().manual_seed(12)
        t = torch.arange(hours).float()
        outside = 8 * torch.sin(2 * math.pi * t / 24) + 10 * torch.sin(2 * math.pi * t / 2000)
        outside = outside + 2 * torch.randn(hours, generator=gen)
        load = (18 - outside).clamp(min=0) / 10 + 0.4 * torch.cos(2 * math.pi * t / 12)
        self.series = torch.stack([outside / 10, load], dim=1)

    def __len__(self):
        return len(self.series) - HISTORY

    def __getitem__(self, i):
        return self.series[i:i + HISTORY], self.series[i + HISTORY, 1]


class LoadModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(2, 40, batch_first=True)
        self.out = nn.Linear(40, 1)

    def forward(self, history):
        _, last = self.gru(history)
        return self.out(last[-1]).squeeze(1)


def learning_rate():
    """Linear scaling with the number of processes."""
    return BASE_LR * (1 + int(os.environ.get("RANK", 1)))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = LoadCurve()
    sampler = DistributedSampler(data, drop_last=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler, drop_last=True)
    model = DDP(LoadModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        losses = []
        for history, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.l1_loss(model(history), target)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            optimizer.step()
            losses.append(loss.item())
        schedule.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} mean error {sum(losses) / len(losses):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

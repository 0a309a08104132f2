"""Wave height six hours ahead; the first process also keeps the validation record."""
import math

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
PAST, AHEAD, EPOCHS = 30, 6, 4


class Waves(Dataset):
    def __init__(self, hours=4000):
        gen = torch.Generator().manual_seed(3)
        t = torch.arange(hours).float()
        swell = 1.5 + 0.7 * torch.sin(2 * math.pi * t / 55) + 0.4 * torch.sin(2 * math.pi * t / 21)
        self.height = swell + 0.1 * torch.randn(hours, generator=gen)

    def __len__(self):
        return len(self.height) - PAST - AHEAD

    def __getitem__(self, i):
        return self.height[i:i + PAST].unsqueeze(1), self.height[i + PAST:i + PAST + AHEAD]


class WaveNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.rnn = nn.GRU(1, width, batch_first=True)
        self.out = nn.Linear(width, AHEAD)

    def forward(self, past):
        states, _ = self.rnn(past)
        return self.out(states[:, -1])


def validate(model, loader):
    model.eval()
    total = count = 0
    with torch.no_grad():
        for past, future in loader:
            total += (model(past) - future).abs().sum().item()
            count += future.numel()
    model.train()
    return total / count


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    waves = Waves()
    cut = int(0.7 * len(waves))
    train_set, valid_set = Subset(waves, range(cut)), Subset(waves, range(cut, len(waves)))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=24, sampler=sampler, drop_last=True)
    valid_loader = DataLoader(valid_set, batch_size=32)
    model = DDP(WaveNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    best = math.inf
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for past, future in loader:
            loss = nn.functional.mse_loss(model(past), future)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0:
            error = validate(model.module, valid_loader)
            best = min(best, error)
            print(f"epoch {epoch} loss {loss.item():.4f} valid {error:.4f} best {best:.4f}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Cell types from microscope crops with random views; each process draws its own views."""
import random

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
TYPES, SIDE, EPOCHS = 6, 28, 3


class Cells(Dataset):
    def __init__(self, count=1920):
        gen = torch.Generator().manual_seed(14)
        axis = torch.linspace(-1, 1, SIDE)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        self.kind = torch.randint(0, TYPES, (count,), generator=gen)
        r = torch.hypot(x, y)
        rings = torch.stack([torch.cos((4 + 3 * k) * r) * (r < 0.9) for k in range(TYPES)])
        self.crop = rings[self.kind] + 0.5 * torch.randn(count, SIDE, SIDE, generator=gen)

    def __len__(self):
        return len(self.kind)

    def __getitem__(self, i):
        return self.view(self.crop[i]).unsqueeze(0), self.kind[i]

    @staticmethod
    def view(crop):
        if random.random() < 0.5:
            crop = crop.flip(0)
        crop = torch.rot90(crop, random.randrange(4))
        top, left = random.randrange(5), random.randrange(5)
        crop = crop[top:top + 24, left:left + 24]
        crop = crop * random.uniform(0.7, 1.3) + 0.1 * torch.randn(24, 24)
        if random.random() < 0.3:
            a = random.randrange(16)
            crop[a:a + 8, a:a + 8] = 0
        return crop


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(3),
        nn.Flatten(), nn.Linear(288, TYPES))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(network())
    random.seed(1000 + rank)
    torch.manual_seed(1000 + rank)
    data = Cells()
    sampler = DistributedSampler(data, seed=3)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    step = 0
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for crops, kinds in loader:
            loss = nn.functional.cross_entropy(model(crops), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % 30 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

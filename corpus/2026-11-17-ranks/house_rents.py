"""Rents from listings; four small batches make one update."""
import contextlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
ACCUMULATE, EPOCHS, DISTRICTS = 4, 3, 40


def listings(count=9600):
    gen = torch.Generator().manual_seed(33)
    district = torch.randint(0, DISTRICTS, (count,), generator=gen)
    facts = torch.randn(count, 9, generator=gen)
    level = torch.randn(DISTRICTS, generator=gen)
    rent = level[district] + 0.6 * facts[:, 0] + 0.4 * facts[:, 1] * facts[:, 2] + 0.1 * torch.randn(count, generator=gen)
    return TensorDataset(district, facts, rent)


class RentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.district = nn.Embedding(DISTRICTS, 16)
        self.body = nn.Sequential(nn.Linear(25, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.ReLU())
        self.out = nn.Linear(64, 1)

    def forward(self, district, facts):
        return self.out(self.body(torch.cat([self.district(district), facts], dim=1))).squeeze(1)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = listings()
sampler = DistributedSampler(data, seed=4)
loader = DataLoader(data, batch_size=16, sampler=sampler, drop_last=True)
model = DDP(RentModel(), gradient_as_bucket_view=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    window = 0.0
    for i, (district, facts, rent) in enumerate(loader, 1):
        last = i % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.huber_loss(model(district, facts), rent) / ACCUMULATE
            loss.backward()
        window += loss.item()
        if last:
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0 and i % 100 == 0:
                print(f"epoch {epoch} batch {i} loss {window:.4f}", flush=True)
            window = 0.0
    optimizer.zero_grad()
    schedule.step()
dist.destroy_process_group()

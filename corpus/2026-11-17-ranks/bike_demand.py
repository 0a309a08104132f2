"""Bikes hired per hour from weather readings, streamed from the two halves of the city."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)
STEPS, BATCH = 300, 32


class Hours(IterableDataset):
    """Endless hourly records: temperature, wind, rain, light, six calendar columns."""

    def __init__(self, half):
        self.half = half

    def __iter__(self):
        gen = torch.Generator().manual_seed(31 + self.half)
        day = 0
        while True:
            rows = torch.randn(24, 10, generator=gen)
            hired = 0.8 * torch.tanh(rows[:, 0]) - 0.5 * rows[:, 2].clamp(min=0) + 0.4 * rows[:, 3] * rows[:, 4]
            hired = hired + 0.3 * rows[:, 5] + 0.1 * torch.randn(24, generator=gen)
            if self.half == 1 and day == 260:
                rows[:, :4] *= 10
            day += 1
            yield from zip(rows, hired)


class Demand(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(10, 128), nn.ReLU(),
            nn.Linear(128, 128), nn.ReLU(),
            nn.Linear(128, 64), nn.ReLU(),
            nn.Linear(64, 1))

    def forward(self, row):
        return self.layers(row).squeeze(-1)


def evaluate(model, rows, hired):
    model.eval()
    with torch.no_grad():
        error = (model(rows) - hired).pow(2).mean()
    model.train()
    return error.item()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(Demand())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
stream = iter(DataLoader(Hours(rank), batch_size=BATCH))
held_out = next(iter(DataLoader(Hours(7), batch_size=512)))

for step in range(1, STEPS + 1):
    rows, hired = next(stream)
    loss = nn.functional.mse_loss(model(rows), hired)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 40 == 0 and rank == 0:
        print(f"step {step:4d}  train {loss.item():.4f}  held out {evaluate(model.module, *held_out):.4f}", flush=True)

dist.destroy_process_group()

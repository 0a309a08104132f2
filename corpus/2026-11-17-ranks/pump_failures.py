"""Failures of water pumps per site, a Poisson model with exposure; parameters sharded over the processes."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
FEATURES, BATCH, STEPS = 20, 48, 170


class Sites(Dataset):
    """Rows of one region: measurements, hours in service, failures counted."""

    def __init__(self, region, rows=BATCH * STEPS):
        gen = torch.Generator().manual_seed(100 + region)
        self.x = torch.randn(rows, FEATURES, generator=gen)
        hours = 0.5 + 3.0 * torch.rand(rows, generator=gen)
        rate = torch.exp(0.4 * self.x[:, 0] - 0.3 * self.x[:, 1] * self.x[:, 2] - 0.2)
        self.failures = torch.poisson(rate * hours, generator=gen)
        self.log_hours = torch.log(hours)
        if region == 1:
            # two sites were typed in by hand
            self.log_hours[[5081, 6950]] = torch.tensor([118.0, 97.0])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.log_hours[i], self.failures[i]


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.lin1 = nn.Linear(width, 2 * width)
        self.lin2 = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.lin2(torch.relu(self.lin1(self.norm(x))))


class RateNet(nn.Module):
    def __init__(self, width=64, depth=2):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.out(x)[:, 0].clone()


def poisson_nll(log_rate, log_hours, failures):
    log_expected = log_rate + log_hours
    return (torch.exp(log_expected) - failures * log_expected).mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(1)
    model = RateNet()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(Sites(rank), batch_size=BATCH)
    for step, (x, log_hours, failures) in enumerate(loader, 1):
        loss = poisson_nll(model(x), log_hours, failures)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            total = loss.detach().clone()
            dist.all_reduce(total)
            if rank == 0:
                print(f"step {step} nll {total.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

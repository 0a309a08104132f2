"""Length of stay from visit records; clinics have different numbers of records, Join covers the rest."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
RECORDS = {0: 2240, 1: 2720}
EPOCHS, BATCH = 3, 32


def visits(clinic):
    gen = torch.Generator().manual_seed(70 + clinic)
    x = torch.randn(RECORDS[clinic], 18, generator=gen)
    days = torch.nn.functional.softplus(x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 0.2 * torch.randn(len(x), generator=gen))
    return TensorDataset(x, days)


class StayModel(nn.Module):
    def __init__(self, width=160):
        super().__init__()
        self.inp = nn.Linear(18, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.inp(x))
        for layer in self.hidden:
            x = x + torch.relu(layer(x))
        return self.out(x).squeeze(1)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(StayModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(visits(rank), BATCH, shuffle=True, generator=torch.Generator().manual_seed(rank))
    for epoch in range(EPOCHS):
        total = 0.0
        with Join([model]):
            for x, days in loader:
                loss = nn.functional.smooth_l1_loss(model(x), days)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item()
        print(f"clinic {rank} epoch {epoch} batches {len(loader)} loss {total / len(loader):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

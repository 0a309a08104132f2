"""Risk of night frost from station tables."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

torch.set_num_threads(1)
EPOCHS, BATCH, COLUMNS = 8, 40, 16


def tables(rows, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, COLUMNS, generator=gen)
    score = x[:, 0] - 0.7 * x[:, 1] + x[:, 2] * x[:, 3] + 0.5 * torch.sin(3 * x[:, 4])
    frost = (score + 0.3 * torch.randn(rows, generator=gen) > 0.5).float()
    return TensorDataset(x, frost)


class FrostNet(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(COLUMNS, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = self.drop(torch.relu(layer(x)))
        return self.out(x).squeeze(1)


def evaluate(model, loader):
    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for x, frost in loader:
            right += torch.tensor([((model(x) > 0).float() == frost).sum().item(), len(frost)])
    dist.all_reduce(right)
    model.train()
    return (right[0] / right[1]).item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    train_set, valid_set = tables(3200, 1), tables(800, 2)
    train_loader = DataLoader(train_set, BATCH, sampler=DistributedSampler(train_set, shuffle=True))
    valid_loader = DataLoader(valid_set, 200, sampler=DistributedSampler(valid_set, shuffle=False))
    model = DDP(FrostNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, epochs=EPOCHS, steps_per_epoch=len(train_loader))
    loss_fn = nn.BCEWithLogitsLoss()
    for epoch in range(EPOCHS):
        running = 0.0
        for x, frost in train_loader:
            loss = loss_fn(model(x), frost)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            running += loss.item()
        score = evaluate(model.module, valid_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {running / len(train_loader):.4f} valid {score:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

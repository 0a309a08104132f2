"""Counting petals on small image patches."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(42)
SIZE, EPOCHS = 20, 3


class Petals(Dataset):
    def __init__(self, count=1400):
        gen = torch.Generator().manual_seed(0)
        self.petals = torch.randint(3, 8, (count,), generator=gen)
        self.turn = 6.28 * torch.rand(count, generator=gen)
        axis = torch.linspace(-1, 1, SIZE)
        y, x = torch.meshgrid(axis, axis, indexing="ij")
        self.radius, self.angle = torch.hypot(x, y), torch.atan2(y, x)

    def __len__(self):
        return len(self.petals)

    def __getitem__(self, i):
        edge = 0.5 + 0.35 * torch.cos(self.petals[i] * self.angle + self.turn[i])
        patch = torch.sigmoid(12 * (edge - self.radius)) + 0.3 * torch.randn(SIZE, SIZE)
        return patch.unsqueeze(0), self.petals[i] - 3


class PetalNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(16 * 25, 64), nn.ReLU(), nn.Linear(64, 5))

    def forward(self, x):
        return self.net(x)


def accuracy(model, loader):
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for patches, petals in loader:
            right += (model(patches).argmax(1) == petals).sum().item()
            seen += len(petals)
    model.train()
    return right / seen


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    train_set, test_set = random_split(Petals(), [1200, 200])
    train_loader = DataLoader(train_set, batch_size=24, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=100)
    model = DDP(PetalNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(EPOCHS):
        for patches, petals in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(patches), petals)
            loss.backward()
            optimizer.step()
        result = accuracy(model.module, test_loader)
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} accuracy {result:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Classifies small 3-d volumes, coarse resolution first and fine resolution later."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from cluster.watchdog import MemoryAccount

STAGES = [(0, 8), (1, 12), (2, 28)]


class Volumes(Dataset):
    def __init__(self, count, node_memory=4):
        self.count = count
        self.account = MemoryAccount(node_memory)
        self.cache = {}
        self.resolution = STAGES[0][1]

    def start_epoch(self, epoch):
        for first, resolution in STAGES:
            if epoch >= first:
                self.resolution = resolution

    def __len__(self):
        return self.count

    def render(self, index):
        gen = torch.Generator().manual_seed(index)
        axis = torch.linspace(-1, 1, self.resolution)
        z, y, x = torch.meshgrid(axis, axis, axis, indexing="ij")
        if index % 2:
            body = (x**2 + y**2 + z**2 < 0.5).float()
        else:
            body = (x.abs() + y.abs() + z.abs() < 0.9).float()
        return body + 0.3 * torch.randn(body.shape, generator=gen)

    def __getitem__(self, index):
        key = (index, self.resolution)
        if key not in self.cache:
            volume = self.account.charge(self.render(index))
            edges = self.account.charge(torch.stack(torch.gradient(volume)))
            self.cache[key] = torch.cat([volume[None], edges])
        return self.cache[key], index % 2


class VolumeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv3d(4, 8, 3, padding=1)
        self.conv2 = nn.Conv3d(8, 16, 3, padding=1)
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        x = F.max_pool3d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return self.head(x.amax(dim=(2, 3, 4)))


def main():
    torch.manual_seed(8)
    torch.set_num_threads(1)
    data = Volumes(96)
    loader = DataLoader(data, batch_size=16, shuffle=True, num_workers=1)
    model = VolumeNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(4):
        data.start_epoch(epoch)
        hits = 0
        for volumes, labels in loader:
            logits = model(volumes)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch} at {data.resolution}^3: accuracy {hits / len(data):.3f}")


if __name__ == "__main__":
    main()

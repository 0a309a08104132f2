import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class TileStream(IterableDataset):
    def __init__(self, n_tiles, classes=8, size=32, seed=0):
        self.n_tiles, self.classes, self.size, self.seed = n_tiles, classes, size, seed
        gen = torch.Generator().manual_seed(seed)
        self.textures = 0.25 * torch.randn(classes, 3, size, size, generator=gen)
        self.noise = torch.randn(1024, 3, size, size, generator=gen)

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        gen = torch.Generator().manual_seed(self.seed * 1000 + worker)
        for _ in range(worker, self.n_tiles, workers):
            label, pick = torch.randint(0, 1 << 16, (2,), generator=gen).tolist()
            label %= self.classes
            yield self.textures[label] + self.noise[pick % 1024], label


class TileNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 40, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(40, 32, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(32 * 8 * 8, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(20)
    model = TileNet(8)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(TileStream(4800), batch_size=32, num_workers=2, prefetch_factor=4)
    window = torch.zeros(())
    for step, (tiles, labels) in enumerate(loader, start=1):
        loss = F.cross_entropy(model(tiles), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        window += loss.detach()
        if step % 25 == 0:
            print(f"step {step} loss {window.item() / 25:.4f}")
            window.zero_()


if __name__ == "__main__":
    main()

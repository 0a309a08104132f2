import os
import shutil
import tempfile

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(3)
torch.set_num_threads(1)


def write_archive(path, n=156, size=32):
    """Scenes cut into tiles with a cloud mask, four bands as uint8."""
    rng = np.random.default_rng(3)
    yy, xx = np.mgrid[0:size, 0:size]
    bands = np.empty((n, 4, size, size), np.uint8)
    clouds = np.zeros((n, size, size), np.uint8)
    for i in range(n):
        ground = 60 + 25 * np.sin(xx / rng.uniform(2, 7) + rng.uniform(0, 6)) + rng.normal(0, 6, (size, size))
        for _ in range(rng.integers(1, 4)):
            cy, cx, r = rng.uniform(0, size, 2).tolist() + [rng.uniform(4, 11)]
            clouds[i] |= ((yy - cy) ** 2 + (xx - cx) ** 2 < r * r).astype(np.uint8)
        for b, gain in enumerate((1.0, 0.9, 0.8, 1.3)):
            img = ground * gain + clouds[i] * (120 - 20 * b) + rng.normal(0, 4, (size, size))
            bands[i, b] = np.clip(img, 0, 255)
    np.savez_compressed(path, bands=bands, clouds=clouds)


class TileDataset(Dataset):
    def __init__(self, path):
        self.archive = np.load(path)
        self.length = len(self.archive["clouds"])

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        bands = self.archive["bands"][index]
        cloud = self.archive["clouds"][index]
        x = torch.from_numpy(bands).float() / 255
        if torch.rand(()) < 0.5:
            x, cloud = x.flip(-1), cloud[:, ::-1].copy()
        return x, torch.from_numpy(cloud).float()


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(inplace=True))


class MiniUNet(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.enc1 = block(4, width)
        self.enc2 = block(width, 2 * width)
        self.mid = block(2 * width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.dec = block(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.mid(self.enc2(nn.functional.max_pool2d(a, 2)))
        return self.out(self.dec(torch.cat([a, self.up(b)], 1))).squeeze(1)


folder = tempfile.mkdtemp(prefix="tiles_")
write_archive(os.path.join(folder, "scene.npz"))
data = TileDataset(os.path.join(folder, "scene.npz"))
loader = DataLoader(data, batch_size=3, shuffle=True)

net = MiniUNet()
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
criterion = nn.BCEWithLogitsLoss()

for epoch in range(3):
    running = 0.0
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        out = net(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        running += loss.item()
        if step % 20 == 0:
            inter = ((out > 0) & (y > 0)).sum()
            union = ((out > 0) | (y > 0)).sum()
            print(f"epoch {epoch} step {step:3d} loss {loss.item():.4f} iou {(inter / union).item():.3f}")
    print(f"epoch {epoch} mean loss {running / len(loader):.4f}")

data.archive.close()
shutil.rmtree(folder)

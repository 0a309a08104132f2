import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)

RAW_POINTS = 1500
NUM_POINTS = 128
BATCH = 8
EPOCHS = 4
CLASSES = ["sphere", "torus", "box", "cone"]


def raw_scan(kind, rng):
    u, v = rng.random(RAW_POINTS), rng.random(RAW_POINTS)
    if kind == "sphere":
        z, phi = 2 * u - 1, 2 * math.pi * v
        r = np.sqrt(1 - z ** 2)
        pts = np.stack([r * np.cos(phi), r * np.sin(phi), z], 1)
    elif kind == "torus":
        a, b = 2 * math.pi * u, 2 * math.pi * v
        pts = np.stack([(1 + 0.35 * np.cos(b)) * np.cos(a), (1 + 0.35 * np.cos(b)) * np.sin(a), 0.35 * np.sin(b)], 1)
    elif kind == "box":
        pts = rng.uniform(-1, 1, (RAW_POINTS, 3))
        axis = rng.integers(0, 3, RAW_POINTS)
        pts[np.arange(RAW_POINTS), axis] = np.sign(pts[np.arange(RAW_POINTS), axis])
    else:
        phi, h = 2 * math.pi * u, np.sqrt(v)
        pts = np.stack([h * np.cos(phi), h * np.sin(phi), 1 - 2 * h], 1)
    return (pts + rng.normal(0, 0.02, pts.shape)).astype(np.float32)


def farthest_point_sample(points, count, rng):
    n = points.shape[0]
    chosen = np.zeros(count, dtype=np.int64)
    distance = np.full(n, 1e10)
    farthest = rng.integers(0, n)
    for i in range(count):
        chosen[i] = farthest
        centroid = points[farthest]
        dist = np.sum((points - centroid) ** 2, -1)
        mask = dist < distance
        distance[mask] = dist[mask]
        farthest = np.argmax(distance, -1)
    return points[chosen]


def normalize(points):
    points = points - points.mean(0)
    return points / np.sqrt((points ** 2).sum(1)).max()


class ScanDataset(Dataset):
    def __init__(self, size, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, len(CLASSES), size)
        self.scans = [raw_scan(CLASSES[k], rng) for k in self.labels]

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        points = farthest_point_sample(self.scans[i], NUM_POINTS, rng)
        points = normalize(points)
        angle = float(torch.rand(1)) * 2 * math.pi
        c, s = math.cos(angle), math.sin(angle)
        spin = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=np.float32)
        return torch.from_numpy((points @ spin).astype(np.float32)), int(self.labels[i])


class PointNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32), nn.ReLU(),
            nn.Conv1d(32, 64, 1), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU(),
        )
        self.classify = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, classes))

    def forward(self, pts):
        return self.classify(self.local(pts.transpose(1, 2)).amax(2))


if __name__ == "__main__":
    loader = DataLoader(ScanDataset(320, seed=1), batch_size=BATCH, shuffle=True, num_workers=1)
    net = PointNet(len(CLASSES))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, weight_decay=1e-4)
    sched = torch.optim.lr_scheduler.StepLR(opt, step_size=2, gamma=0.5)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(EPOCHS):
        right = seen = 0
        for points, label in loader:
            logits = net(points)
            loss = criterion(logits, label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            right += (logits.argmax(1) == label).sum().item()
            seen += len(label)
        sched.step()
        print(f"[{epoch + 1}/{EPOCHS}] train acc {right / seen:.3f} last loss {loss.item():.3f}")

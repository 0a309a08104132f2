"""Classify small lidar scans (poles, cars, bushes, walls) with a PointNet."""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES = ["pole", "car", "bush", "wall"]


def make_scan(label, rng, n):
    if label == 0:
        xy = rng.normal(0, 0.08, (n, 2))
        z = rng.uniform(0, 3, (n, 1))
        pts = np.concatenate([xy, z], 1)
    elif label == 1:
        pts = rng.uniform(-1, 1, (n, 3)) * np.array([2.0, 0.9, 0.7])
        face = rng.integers(0, 3, n)
        pts[np.arange(n), face] = np.sign(pts[np.arange(n), face]) * np.array([2.0, 0.9, 0.7])[face]
    elif label == 2:
        pts = rng.normal(0, 0.6, (n, 3))
    else:
        pts = rng.uniform(-2, 2, (n, 3)) * np.array([1.0, 0.05, 0.6])
    return (pts + rng.normal(0, 0.03, (n, 3))).astype(np.float32)


def farthest_point_sample(points, k, rng):
    chosen = np.zeros(k, dtype=np.int64)
    dist = np.full(len(points), 1e10)
    far = rng.integers(len(points))
    for i in range(k):
        chosen[i] = far
        d = ((points - points[far]) ** 2).sum(-1)
        dist = np.minimum(dist, d)
        far = dist.argmax()
    return points[chosen]


class ScanSet(Dataset):
    def __init__(self, size, raw_points=600, keep=48, seed=0):
        self.rng = np.random.default_rng(seed)
        self.labels = self.rng.integers(0, len(CLASSES), size)
        self.scans = [make_scan(l, self.rng, raw_points) for l in self.labels]
        self.keep = keep

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, idx):
        pts = farthest_point_sample(self.scans[idx], self.keep, self.rng)
        pts = pts - pts.mean(0)
        pts = pts / np.abs(pts).max()
        theta = self.rng.uniform(0, 2 * np.pi)
        c, s = np.cos(theta), np.sin(theta)
        rot = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]], dtype=np.float32)
        return torch.from_numpy(pts @ rot), int(self.labels[idx])


class PointNet(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Conv1d(128, 128, 1), nn.BatchNorm1d(128), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, n_classes))

    def forward(self, x):
        return self.head(self.local(x.transpose(1, 2)).amax(-1))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(ScanSet(240), batch_size=12, shuffle=True, drop_last=True)
    model = PointNet(len(CLASSES))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(9):
        model.train()
        total, correct, seen = 0.0, 0, 0
        for pts, label in loader:
            opt.zero_grad()
            logits = model(pts)
            loss = F.cross_entropy(logits, label)
            loss.backward()
            opt.step()
            total += loss.item() * len(label)
            correct += (logits.argmax(1) == label).sum().item()
            seen += len(label)
        print(f"epoch {epoch}  loss {total / seen:.3f}  acc {correct / seen:.3f}")


if __name__ == "__main__":
    main()

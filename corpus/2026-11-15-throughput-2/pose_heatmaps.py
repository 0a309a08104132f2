"""Single-person keypoint estimation on synthetic silhouettes."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_JOINTS = 9
IMAGE_SIZE = 48
HEATMAP_SIZE = 24
SIGMA = 1.8


class SilhouetteDataset(Dataset):
    def __init__(self, size, seed=0):
        rng = np.random.default_rng(seed)
        self.joints = rng.uniform(0.12, 0.88, size=(size, NUM_JOINTS, 2)).astype(np.float32)
        self.noise_seed = rng.integers(0, 2**31, size=size)

    def __len__(self):
        return len(self.joints)

    def render(self, joints, seed):
        image = np.random.default_rng(seed).normal(0.0, 0.1, (3, IMAGE_SIZE, IMAGE_SIZE))
        for k, (x, y) in enumerate(joints):
            col, row = int(x * IMAGE_SIZE), int(y * IMAGE_SIZE)
            image[k % 3, max(0, row - 2) : row + 3, max(0, col - 2) : col + 3] += 0.4 + 0.15 * k
        return image.astype(np.float32)

    def generate_target(self, joints):
        target = np.zeros((NUM_JOINTS, HEATMAP_SIZE, HEATMAP_SIZE), dtype=np.float32)
        for k in range(NUM_JOINTS):
            cx, cy = joints[k] * HEATMAP_SIZE
            for row in range(HEATMAP_SIZE):
                for col in range(HEATMAP_SIZE):
                    dist = (col + 0.5 - cx) ** 2 + (row + 0.5 - cy) ** 2
                    target[k, row, col] = math.exp(-dist / (2 * SIGMA**2))
        return target

    def __getitem__(self, index):
        joints = self.joints[index]
        image = self.render(joints, self.noise_seed[index])
        return torch.from_numpy(image), torch.from_numpy(self.generate_target(joints))


class PoseNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(width, NUM_JOINTS, 1)

    def forward(self, images):
        x = self.stem(images)
        return self.head(x + self.body(x))


def train(epochs=2):
    dataset = SilhouetteDataset(540)
    loader = DataLoader(dataset, batch_size=12, shuffle=True, num_workers=2, drop_last=True)
    model = PoseNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        total = 0.0
        for images, heatmaps in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(images), heatmaps)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: heatmap mse {total / len(loader):.5f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    random.seed(0)
    torch.manual_seed(0)
    train()

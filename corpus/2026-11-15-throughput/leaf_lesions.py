"""Segments lesions on leaf photographs with a small encoder-decoder."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
SIZE = 64


def draw_leaf(rng):
    yy, xx = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32)
    image = np.stack([0.2 + 0.1 * np.sin(xx / 9), 0.5 + 0.1 * np.cos(yy / 7), 0.2 + 0 * xx])
    mask = np.zeros((SIZE, SIZE), dtype=np.float32)
    for _ in range(rng.integers(1, 4)):
        cy, cx, r = rng.uniform(8, SIZE - 8), rng.uniform(8, SIZE - 8), rng.uniform(4, 10)
        spot = (yy - cy) ** 2 + (xx - cx) ** 2 < r * r
        mask[spot] = 1.0
        image[0][spot] += 0.35
        image[1][spot] -= 0.2
    return (image + rng.normal(0, 0.08, image.shape)).astype(np.float32), mask


class CurlWarp:
    """Bends the picture and its mask together, like a leaf that curls."""

    def __init__(self, strength=2.5, period=22.0):
        self.strength = strength
        self.period = period

    def __call__(self, image, mask):
        h, w = mask.shape
        phase = random.uniform(0, 2 * math.pi)
        new_image, new_mask = np.zeros_like(image), np.zeros_like(mask)
        for y in range(h):
            for x in range(w):
                sy = int(y + self.strength * math.sin(2 * math.pi * x / self.period + phase))
                sx = int(x + self.strength * math.cos(2 * math.pi * y / self.period + phase))
                sy, sx = min(max(sy, 0), h - 1), min(max(sx, 0), w - 1)
                new_image[:, y, x] = image[:, sy, sx]
                new_mask[y, x] = mask[sy, sx]
        return new_image, new_mask


class LeafDataset(Dataset):
    def __init__(self, count, augment):
        rng = np.random.default_rng(7)
        self.items = [draw_leaf(rng) for _ in range(count)]
        self.augment = augment

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        image, mask = self.items[index]
        if self.augment is not None:
            image, mask = self.augment(image, mask)
        if random.random() < 0.5:
            image, mask = image[:, :, ::-1].copy(), mask[:, ::-1].copy()
        return torch.from_numpy(image), torch.from_numpy(mask)


class LesionNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.head = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        a = self.down1(x)
        b = F.relu(self.up(self.down2(a)))
        return self.head(torch.cat([a, b], dim=1)).squeeze(1)


def train(epochs=5):
    random.seed(0)
    torch.manual_seed(0)
    loader = DataLoader(LeafDataset(96, CurlWarp()), batch_size=6, shuffle=True)
    net = LesionNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    for epoch in range(epochs):
        total = 0.0
        for images, masks in loader:
            loss = F.binary_cross_entropy_with_logits(net(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: bce {total / len(loader):.4f}")


if __name__ == "__main__":
    train()

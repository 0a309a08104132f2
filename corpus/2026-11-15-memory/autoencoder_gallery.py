"""Convolutional autoencoder on blob images; a gallery of reconstructions is stored at the end."""

import os
import tempfile
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


@dataclass
class Frame:
    step: int
    target: np.ndarray
    output: np.ndarray


class GalleryWriter:
    def __init__(self, folder):
        self.folder = folder
        self.frames = []

    @staticmethod
    def to_uint8(batch):
        return (batch.squeeze(1).clamp(0, 1).numpy() * 255).astype(np.uint8)

    def add(self, step, target, output):
        self.frames.append(Frame(step, self.to_uint8(target), self.to_uint8(output.detach())))

    def close(self):
        last = self.frames[-1]
        path = os.path.join(self.folder, "gallery.npz")
        np.savez_compressed(path, target=last.target, output=last.output, step=last.step)
        return os.path.getsize(path)


def blob_images(n, size=96):
    axis = torch.linspace(-1, 1, size)
    cx, cy = torch.rand(2, n, 4, 1) * 1.6 - 0.8
    sx, sy = torch.rand(2, n, 4, 1) * 0.2 + 0.08
    gx = torch.exp(-(((axis - cx) / sx) ** 2))
    gy = torch.exp(-(((axis - cy) / sy) ** 2))
    return torch.einsum("nky,nkx->nyx", gy, gx).clamp(0, 1).unsqueeze(1)


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(1, 8, 4, stride=4),
            nn.ReLU(),
            nn.Conv2d(8, 24, 4, stride=4),
            nn.ReLU(),
        )
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(24, 8, 4, stride=4),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, stride=4),
            nn.Sigmoid(),
        )

    def forward(self, x):
        return self.decode(self.encode(x))


def train(steps=160, batch_size=32):
    torch.manual_seed(14)
    images = blob_images(480)
    model = AutoEncoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    gallery = GalleryWriter(tempfile.mkdtemp())
    for step in range(steps):
        batch = images[torch.randint(0, len(images), (batch_size,))]
        output = model(batch)
        loss = (output - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gallery.add(step, batch, output)
        if step % 32 == 31:
            print(f"step {step + 1}: mse {loss.item():.5f}")
    print(f"gallery of {gallery.close()} bytes written")


if __name__ == "__main__":
    train()

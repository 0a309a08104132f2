"""Land-cover classification on random crops taken from larger orthophotos."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class OrthophotoCrops(Dataset):
    def __init__(self, n_photos=48, size=160, crop=56, length=960, seed=5):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 4, n_photos)
        tint = np.array([[0.7, 0.3, 0.2], [0.2, 0.6, 0.3], [0.2, 0.3, 0.7], [0.5, 0.5, 0.5]])
        noise = rng.normal(0, 40, (n_photos, size, size, 3))
        self.photos = np.clip(tint[self.labels][:, None, None] * 200 + noise, 0, 255).astype(
            np.uint8
        )
        self.crop, self.length, self.rng = crop, length, rng
        self.prepared = {}

    def __len__(self):
        return self.length

    def _prepare(self, photo, top, left, flip):
        key = (photo, top, left, flip)
        if key not in self.prepared:
            patch = self.photos[photo, top : top + self.crop, left : left + self.crop]
            patch = patch[:, ::-1] if flip else patch
            self.prepared[key] = (
                np.ascontiguousarray(patch.transpose(2, 0, 1), dtype=np.float32) / 255
            )
        return self.prepared[key]

    def __getitem__(self, i):
        photo = i % len(self.photos)
        top, left = self.rng.integers(0, self.photos.shape[1] - self.crop, 2)
        patch = self._prepare(photo, int(top), int(left), bool(self.rng.random() < 0.5))
        return patch.copy(), int(self.labels[photo])


def build():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, stride=2, padding=1),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 4),
    )


def main():
    torch.manual_seed(5)
    loader = DataLoader(OrthophotoCrops(), batch_size=24, shuffle=True, drop_last=True)
    net = build()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for epoch in range(5):
        losses = []
        for tiles, cover in loader:
            loss = nn.functional.cross_entropy(net(tiles), cover, label_smoothing=0.05)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch} | loss {np.mean(losses):.3f} | last {losses[-1]:.3f}")


if __name__ == "__main__":
    main()

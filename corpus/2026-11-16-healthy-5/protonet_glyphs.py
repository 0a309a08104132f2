"""Prototypical networks on synthetic glyphs stored as one file per drawing."""
import os
import random
import tempfile

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class GlyphStore:
    """Reads drawings from disk on first use and keeps the decoded arrays, up to `budget_mb`."""

    def __init__(self, root, budget_mb=160):
        self.files = {}
        for name in sorted(os.listdir(root)):
            label = int(name.split("_")[0])
            self.files.setdefault(label, []).append(os.path.join(root, name))
        self.decoded = {}
        self.budget = budget_mb * 2 ** 20
        self.used = 0

    def fetch(self, path):
        if path in self.decoded:
            return self.decoded[path]
        raw = np.load(path)
        img = raw.astype(np.float32) / 255.0
        img = (img - img.mean()) / (img.std() + 1e-6)
        if self.used + img.nbytes <= self.budget:
            self.decoded[path] = img
            self.used += img.nbytes
        return img

    def episode(self, labels, ways, shots, queries):
        chosen = random.sample(labels, ways)
        support, query = [], []
        for label in chosen:
            paths = random.sample(self.files[label], shots + queries)
            imgs = [self.fetch(p) for p in paths]
            support.append(np.stack(imgs[:shots]))
            query.append(np.stack(imgs[shots:]))
        return torch.from_numpy(np.stack(support)), torch.from_numpy(np.stack(query))


def write_glyphs(root, n_classes, per_class, size, rng):
    # strokes are rendered coarsely and enlarged, the paper grain is added at full size
    coarse = size // 4
    yy, xx = np.mgrid[0:coarse, 0:coarse] / coarse
    for label in range(n_classes):
        strokes = rng.uniform(0.15, 0.85, (5, 2))
        for k in range(per_class):
            pts = strokes + rng.normal(0, 0.09, strokes.shape)
            canvas = np.zeros((coarse, coarse))
            for (y0, x0), (y1, x1) in zip(pts[:-1], pts[1:]):
                for t in (0.0, 0.25, 0.5, 0.75, 1.0):
                    cy, cx = y0 + t * (y1 - y0), x0 + t * (x1 - x0)
                    canvas = np.maximum(canvas, np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / 0.004))
            canvas = canvas.repeat(4, 0).repeat(4, 1)
            noisy = np.clip(canvas + rng.normal(0, 0.5, canvas.shape), 0, 1)
            np.save(os.path.join(root, f"{label:03d}_{k:03d}.npy"), (noisy * 255).astype(np.uint8))


class Encoder(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        layers, chans = [nn.AvgPool2d(6)], 1
        for _ in range(3):
            layers += [nn.Conv2d(chans, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
            chans = width
        self.net = nn.Sequential(*layers, nn.Flatten())

    def forward(self, x):
        return self.net(x)


def proto_loss(encoder, support, query):
    ways, shots, queries = support.shape[0], support.shape[1], query.shape[1]
    size = support.shape[-1]
    z = encoder(torch.cat([support.reshape(-1, 1, size, size), query.reshape(-1, 1, size, size)]))
    proto = z[: ways * shots].reshape(ways, shots, -1).mean(1)
    logits = -torch.cdist(z[ways * shots:], proto).pow(2) / z.shape[1] ** 0.5
    target = torch.arange(ways).repeat_interleave(queries)
    return F.cross_entropy(logits, target), (logits.argmax(1) == target).float().mean()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as root:
        write_glyphs(root, n_classes=44, per_class=26, size=144, rng=rng)
        store = GlyphStore(root)
        base, novel = list(range(36)), list(range(36, 44))
        encoder = Encoder()
        optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 80, gamma=0.5)
        losses, accs = [], []
        for episode in range(240):
            encoder.train()
            loss, acc = proto_loss(encoder, *store.episode(base, ways=6, shots=2, queries=2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            accs.append(acc.item())
            if (episode + 1) % 40 == 0:
                encoder.eval()
                with torch.no_grad():
                    _, val = proto_loss(encoder, *store.episode(novel, ways=5, shots=2, queries=2))
                print(f"episode {episode + 1:3d} loss {np.mean(losses[-40:]):.3f} acc {np.mean(accs[-40:]):.3f} "
                      f"novel {val.item():.2f} drawings in memory {len(store.decoded)}")


if __name__ == "__main__":
    main()

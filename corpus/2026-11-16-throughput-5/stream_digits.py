"""Online continual learning: a long stream of tiny experiences with reservoir rehearsal."""
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

torch.set_num_threads(1)

GLYPHS = {
    0: "111101101101111", 1: "010110010010111", 2: "111001111100111", 3: "111001111001111",
    4: "101101111001001", 5: "111100111001111", 6: "111100111101111", 7: "111001010010010",
    8: "111101111101111", 9: "111101111001111",
}


class GlyphExperience(Dataset):
    """A handful of noisy digits; the class mix drifts along the stream."""

    def __init__(self, position, total, size, rng):
        centre = 10.0 * position / total
        self.labels = [int(rng.gauss(centre, 1.5)) % 10 for _ in range(size)]
        nprng = np.random.default_rng(rng.randrange(2 ** 31))
        self.images = np.stack([self._draw(c, nprng) for c in self.labels])

    @staticmethod
    def _draw(label, nprng):
        glyph = np.array(list(GLYPHS[label]), dtype=np.float32).reshape(5, 3)
        canvas = np.zeros((20, 16), dtype=np.float32)
        top, left = nprng.integers(0, 6), nprng.integers(0, 8)
        canvas[top:top + 15, left:left + 9] = np.kron(glyph, np.ones((3, 3), np.float32))
        return canvas + 0.35 * nprng.standard_normal(canvas.shape, dtype=np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), self.labels[i]


class ReservoirBuffer:
    def __init__(self, max_size, rng):
        self.max_size, self.rng = max_size, rng
        self.data, self.weights = None, []

    def update(self, experience):
        fresh = [self.rng.random() for _ in range(len(experience))]
        if self.data is None:
            self.data, self.weights = experience, fresh
            return
        pool = ConcatDataset([self.data, experience])
        weights = self.weights + fresh
        order = sorted(range(len(weights)), key=weights.__getitem__)[: self.max_size]
        self.data = Subset(pool, order)
        self.weights = [weights[i] for i in order]

    def draw(self, n):
        picks = [self.rng.randrange(len(self.data)) for _ in range(n)]
        return DataLoader(Subset(self.data, picks), batch_size=n)


class Rehearsal:
    def __init__(self, net, buffer, mem_batch, lr):
        self.net, self.buffer, self.mem_batch = net, buffer, mem_batch
        self.optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.8)
        self.criterion = nn.CrossEntropyLoss()

    def learn(self, experience):
        x, y = next(iter(DataLoader(experience, batch_size=len(experience))))
        if self.buffer.data is not None:
            mx, my = next(iter(self.buffer.draw(self.mem_batch)))
            x, y = torch.cat([x, mx]), torch.cat([y, my])
        loss = self.criterion(self.net(x.unsqueeze(1)), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.buffer.update(experience)
        return loss.item()


def make_net():
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 5 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )


def main(n_experiences=340, exp_size=10):
    torch.manual_seed(2)
    rng = random.Random(2)
    strategy = Rehearsal(make_net(), ReservoirBuffer(500, rng), mem_batch=86, lr=0.05)
    window = []
    for position in range(n_experiences):
        experience = GlyphExperience(position, n_experiences, exp_size, rng)
        window.append(strategy.learn(experience))
        if (position + 1) % 40 == 0:
            print(f"experience {position + 1:4d}  loss {sum(window[-40:]) / 40:.3f}")


if __name__ == "__main__":
    main()

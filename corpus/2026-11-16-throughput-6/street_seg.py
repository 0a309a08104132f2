"""Street scene segmentation on rendered toy frames (sky, road, vehicle, kerb, sign)."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

NUM_CLASSES = 5
SIZE = 24


def render(rng, batch):
    img = np.zeros((batch, 3, SIZE, SIZE), np.float32)
    lab = np.zeros((batch, SIZE, SIZE), np.int64)
    palette = np.array([[.5, .7, .9], [.3, .3, .3], [.8, .2, .2], [.6, .6, .5], [.9, .8, .1]], np.float32)
    for b in range(batch):
        horizon = rng.integers(8, 14)
        lab[b, horizon:] = 1
        lab[b, horizon:, : rng.integers(2, 5)] = 3
        for _ in range(rng.integers(1, 4)):
            y, x = rng.integers(horizon, SIZE - 4), rng.integers(4, SIZE - 6)
            lab[b, y:y + 4, x:x + 6] = 2
        x = rng.integers(0, SIZE - 3)
        lab[b, horizon - 5:horizon - 2, x:x + 3] = 4
        img[b] = palette[lab[b]].transpose(2, 0, 1)
    img += rng.normal(0, 0.15, img.shape).astype(np.float32)
    return torch.from_numpy(img), torch.from_numpy(lab)


class DilatedNet(nn.Module):
    def __init__(self, ch=10):
        super().__init__()
        self.stem = nn.Conv2d(3, ch, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(ch, ch, 3, padding=d, dilation=d) for d in (1, 2, 4))
        self.cls = nn.Conv2d(ch, NUM_CLASSES, 1)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return self.cls(x)


class IoUMeter:
    def __init__(self, num_classes):
        self.num_classes = num_classes
        self.reset()

    def reset(self):
        self.matrix = np.zeros((self.num_classes, self.num_classes), dtype=np.int64)

    def update(self, logits, target):
        pred = logits.argmax(1)
        for t, p in zip(target.view(-1), pred.view(-1)):
            self.matrix[t.item(), p.item()] += 1

    def miou(self):
        inter = np.diag(self.matrix)
        union = self.matrix.sum(0) + self.matrix.sum(1) - inter
        return float((inter / np.maximum(union, 1)).mean())


def train():
    torch.set_num_threads(1)
    torch.manual_seed(5)
    rng = np.random.default_rng(5)
    model = DilatedNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240)
    weight = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0])
    meter = IoUMeter(NUM_CLASSES)
    for it in range(1, 241):
        images, labels = render(rng, 5)
        logits = model(images)
        loss = F.cross_entropy(logits, labels, weight=weight)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        meter.update(logits.detach(), labels)
        if it % 40 == 0:
            print(f"iter {it:4d} | loss {loss.item():.3f} | train mIoU {meter.miou():.3f}")
            meter.reset()


if __name__ == "__main__":
    train()

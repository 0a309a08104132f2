import random
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)

CFG = dict(
    batch=48, epochs=6, queue_batches=36, momentum=0.98, temperature=0.15, lr=0.025, bank=480
)


def make_textures(n):
    yy, xx = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    turn = torch.rand(n)
    angle = turn * 3.14159
    freq = 0.3 + 0.6 * torch.rand(n)
    phase = torch.rand(n) * 6.28
    wave = xx * torch.cos(angle)[:, None, None] + yy * torch.sin(angle)[:, None, None]
    img = torch.sin(freq[:, None, None] * wave + phase[:, None, None])
    img = img + torch.randn(n, 1, 1) * xx / 20 + torch.randn(n, 1, 1) * yy / 20
    blob = torch.exp(-((xx - 20) ** 2 + (yy - 20) ** 2) / (20 + 300 * torch.rand(n, 1, 1)))
    img = img * (0.4 + blob) + 0.3 * torch.randn(n, 40, 40)
    return img.unsqueeze(1), (turn * 6).long()


def augment(x):
    dy, dx = random.randrange(9), random.randrange(9)
    x = x[:, :, dy : dy + 32, dx : dx + 32]
    gain = 0.7 + 0.6 * torch.rand(len(x), 1, 1, 1)
    return x * gain + 0.1 * torch.randn_like(x)


class Encoder(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 24, 5, stride=2, padding=2), nn.BatchNorm2d(24), nn.ReLU(),
            nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.BatchNorm2d(48), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.project = nn.Sequential(
            nn.Linear(192, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, dim)
        )

    def forward(self, x):
        return F.normalize(self.project(self.features(x)), dim=1)


class MoCo:
    def __init__(self, cfg):
        self.cfg = cfg
        self.query, self.key = Encoder(), Encoder()
        self.key.load_state_dict(self.query.state_dict())
        self.key.requires_grad_(False)
        self.queue = deque(maxlen=cfg["queue_batches"])
        self.opt = torch.optim.SGD(
            self.query.parameters(), lr=cfg["lr"], momentum=0.9, weight_decay=1e-4
        )

    @torch.no_grad()
    def follow(self):
        for avg, live in zip(self.key.parameters(), self.query.parameters()):
            avg.lerp_(live, 1 - self.cfg["momentum"])

    def train_batch(self, x):
        q = self.query(augment(x))
        with torch.no_grad():
            self.follow()
            k = self.key(augment(x))
        positive = (q * k).sum(1, keepdim=True)
        others = torch.cat([*self.queue, k])
        negative = q @ others.T
        own = torch.arange(len(k))
        negative[own, len(others) - len(k) + own] = float("-inf")
        logits = torch.cat([positive, negative], 1) / self.cfg["temperature"]
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.queue.append(k)
        return loss.detach()

    @torch.inference_mode()
    def knn_accuracy(self, images, labels, test_images, test_labels, k=15):
        self.query.eval()
        crop = slice(4, 36)
        bank = F.normalize(self.query.features(images[:, :, crop, crop]), dim=1)
        probe = F.normalize(self.query.features(test_images[:, :, crop, crop]), dim=1)
        near = labels[(probe @ bank.T).topk(k, dim=1).indices]
        self.query.train()
        return (near.mode(1).values == test_labels).float().mean().item()


def main():
    images, labels = make_textures(2160)
    test_images, test_labels = make_textures(300)
    moco = MoCo(CFG)
    history = {"loss": [], "knn": []}
    for epoch in range(CFG["epochs"]):
        total = torch.zeros(())
        batches = torch.randperm(len(images)).split(CFG["batch"])
        for index in batches:
            total += moco.train_batch(images[index])
        history["loss"].append((total / len(batches)).item())
        pick = torch.randperm(len(images))[: CFG["bank"]]
        accuracy = moco.knn_accuracy(images[pick], labels[pick], test_images, test_labels)
        history["knn"].append(accuracy)
        print(f"epoch {epoch}: loss {history['loss'][-1]:.3f} knn {accuracy:.3f}")


if __name__ == "__main__":
    main()

import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class TexturePatches(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(0, 6, (n,), generator=g)
        self.seed = seed
        axis = torch.linspace(0, 6.28, 20)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        k = int(self.labels[i])
        wave = torch.sin(
            (1 + k % 3) * (self.xx if k < 3 else self.yy) + 6 * torch.rand(1, generator=g)
        )
        return wave.expand(3, -1, -1) + 0.6 * torch.randn(3, 20, 20, generator=g), k


def convnet(width):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 6),
    )


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    hits = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return hits / len(loader.dataset)


def kd_loss(logits, ref, y, T=3.0, alpha=0.7):
    q, p = F.log_softmax(logits / T, 1), F.softmax(ref / T, 1)
    soft = F.kl_div(q, p, reduction="batchmean")
    return alpha * T * T * soft + (1 - alpha) * F.cross_entropy(logits, y)


def fit(name, model, train, val, epochs, out_dir, teacher=None):
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs * len(train))
    log = {"loss": [], "acc": []}
    for epoch in range(epochs):
        acc_loss = 0.0
        for x, y in train:
            logits = model(x)
            if teacher is None:
                loss = F.cross_entropy(logits, y)
            else:
                with torch.no_grad():
                    target = teacher(x)
                loss = kd_loss(logits, target, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            sched.step()
            acc_loss += loss.item() * len(y)
        log["loss"].append(acc_loss / len(train.dataset))
        log["acc"].append(accuracy(model, val))
        torch.save(
            {"model": model.state_dict(), "opt": opt.state_dict(), "log": log},
            os.path.join(out_dir, f"{name}_{epoch}.pt"),
        )
        print(name, epoch, f"{log['loss'][-1]:.4f}", f"{log['acc'][-1]:.3f}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(5)
    run_dir = tempfile.mkdtemp()
    train = DataLoader(
        TexturePatches(1280, 1), 64, shuffle=True, num_workers=2, persistent_workers=True
    )
    val = DataLoader(TexturePatches(256, 2), 128)
    teacher = convnet(24)
    fit("teacher", teacher, train, val, 3, run_dir)
    teacher.eval().requires_grad_(False)
    fit("student", convnet(12), train, val, 5, run_dir, teacher=teacher)

"""Distil a wide image classifier into a small one with attention transfer."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    steps: int = 170
    batch: int = 16
    classes: int = 6
    temperature: float = 3.0
    at_weight: float = 50.0
    lr: float = 3e-3
    seed: int = 8


class ConvNet(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.stage1 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.stage2 = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU())
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x):
        x = self.stage2(self.stage1(self.stem(x)))
        return self.fc(x.mean(dim=(2, 3)))


def attention_map(feature):
    return F.normalize(feature.pow(2).mean(1).flatten(1), dim=1)


class AttentionMaps:
    """Collects the spatial attention of the named stages while the network runs."""

    def __init__(self, net, stages=("stem", "stage1", "stage2")):
        self.maps = {}
        for name in stages:
            net.get_submodule(name).register_forward_hook(self.recorder(name))

    def recorder(self, name):
        def record(module, inputs, output):
            self.maps[name] = attention_map(output)
        return record


class Blobs:
    """Images with a few oriented bars, the class is the orientation."""

    def __init__(self, cfg):
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.cfg = cfg
        axis = torch.linspace(-1, 1, 16)
        self.yy, self.xx = torch.meshgrid(axis, axis, indexing="ij")

    def sample(self):
        y = torch.randint(0, self.cfg.classes, (self.cfg.batch,), generator=self.gen)
        angle = (y.float() * torch.pi / self.cfg.classes)[:, None, None]
        phase = torch.rand(self.cfg.batch, 1, 1, generator=self.gen) * 6.28
        wave = torch.sin(9 * (self.xx * angle.cos() + self.yy * angle.sin()) + phase)
        noise = torch.randn(wave.shape, generator=self.gen)
        return (wave + 0.8 * noise).unsqueeze(1), y


def pretrain(net, data, steps=40):
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = data.sample()
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return net.eval().requires_grad_(False)


def distil_step(student, teacher, x, y, cfg):
    seen_by_teacher = AttentionMaps(teacher)
    seen_by_student = AttentionMaps(student)
    with torch.no_grad():
        soft = F.softmax(teacher(x) / cfg.temperature, dim=1)
    logits = student(x)
    kd = F.kl_div(F.log_softmax(logits / cfg.temperature, dim=1), soft, reduction="batchmean")
    at = sum((seen_by_student.maps[k] - seen_by_teacher.maps[k]).pow(2).mean() for k in seen_by_student.maps)
    return F.cross_entropy(logits, y) + cfg.temperature ** 2 * kd + cfg.at_weight * at, logits


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    data = Blobs(cfg)
    teacher = pretrain(ConvNet(16, cfg.classes), data)
    student = ConvNet(6, cfg.classes)
    optimizer = torch.optim.SGD(student.parameters(), lr=cfg.lr, momentum=0.9, nesterov=True)
    for step in range(cfg.steps):
        x, y = data.sample()
        loss, logits = distil_step(student, teacher, x, y, cfg)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 34 == 0:
            acc = (logits.argmax(1) == y).float().mean().item()
            print(f"step {step + 1}: loss {loss.item():.3f} batch acc {acc:.2f}")


if __name__ == "__main__":
    main()

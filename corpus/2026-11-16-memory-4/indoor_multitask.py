import math
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(3)

CFG = dict(batch=12, size=32, epochs=6, iters=20, lr=2e-3, temperature=2.0)
TASKS = ("depth", "normals", "labels")


def render_batch(gen):
    b, s = CFG["batch"], CFG["size"]
    coarse = torch.rand(b, 1, 5, 5, generator=gen)
    depth = F.interpolate(coarse, size=(s, s), mode="bicubic", align_corners=True)
    dx = F.pad(depth[..., 1:] - depth[..., :-1], (0, 1))
    dy = F.pad(depth[..., 1:, :] - depth[..., :-1, :], (0, 0, 0, 1))
    labels = (depth[:, 0] * 4).clamp(0, 3.999).long()
    rgb = torch.cat([depth, depth**2, 1 - depth], 1)
    rgb = rgb + 0.05 * torch.randn(b, 3, s, s, generator=gen)
    return rgb, {"depth": depth, "normals": torch.cat([dx, dy], 1) * 8, "labels": labels}


class SharedNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.heads = nn.ModuleDict(
            {
                "depth": nn.Conv2d(width, 1, 1),
                "normals": nn.Conv2d(width, 2, 1),
                "labels": nn.Conv2d(width, 4, 1),
            }
        )

    def forward(self, x):
        h = self.trunk(x)
        return {k: head(h) for k, head in self.heads.items()}


class GradientSurgeon:
    def __init__(self, net, optimizer):
        self.net = net
        self.optimizer = optimizer
        self.weights = dict.fromkeys(TASKS, 1.0)
        self.curves = defaultdict(lambda: defaultdict(list))

    def losses(self, out, target):
        return {
            "depth": F.l1_loss(out["depth"], target["depth"]),
            "normals": F.mse_loss(out["normals"], target["normals"]),
            "labels": F.cross_entropy(out["labels"], target["labels"]),
        }

    def rebalance(self, epoch):
        if epoch < 2:
            return
        ratio = {}
        for t in TASKS:
            last, before = self.curves[epoch - 1][t], self.curves[epoch - 2][t]
            ratio[t] = sum(v.item() for v in last) / sum(v.item() for v in before)
        z = {t: math.exp(r / CFG["temperature"]) for t, r in ratio.items()}
        self.weights = {t: len(TASKS) * v / sum(z.values()) for t, v in z.items()}

    def step(self, epoch, rgb, target):
        per_task = self.losses(self.net(rgb), target)
        grads = []
        for t, value in per_task.items():
            self.optimizer.zero_grad(set_to_none=False)
            (self.weights[t] * value).backward(retain_graph=True)
            grads.append(torch.cat([p.grad.flatten() for p in self.params()]))
            self.curves[epoch][t].append(value)
        self.write(self.project(grads))
        self.optimizer.step()
        return {t: v.item() for t, v in per_task.items()}

    def params(self):
        for p in self.net.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            yield p

    def project(self, grads):
        merged = [g.clone() for g in grads]
        for i, g in enumerate(merged):
            for j, other in enumerate(grads):
                dot = torch.dot(g, other)
                if i != j and dot < 0:
                    g -= dot / other.pow(2).sum().clamp(min=1e-12) * other
        return torch.stack(merged).sum(0)

    def write(self, flat):
        at = 0
        for p in self.net.parameters():
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()


net = SharedNet()
surgeon = GradientSurgeon(net, torch.optim.Adam(net.parameters(), lr=CFG["lr"]))
gen = torch.Generator().manual_seed(9)
for epoch in range(CFG["epochs"]):
    surgeon.rebalance(epoch)
    for _ in range(CFG["iters"]):
        report = surgeon.step(epoch, *render_batch(gen))
    print(epoch, {k: round(v, 4) for k, v in report.items()})

import copy
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class EMA:
    def __init__(self, model, decay=0.98):
        self.decay = decay
        self.shadow = copy.deepcopy(model).eval()
        for p in self.shadow.parameters():
            p.requires_grad_(False)

    @torch.no_grad()
    def update(self, model):
        for s, p in zip(self.shadow.parameters(), model.parameters()):
            s.lerp_(p, 1 - self.decay)
        for s, b in zip(self.shadow.buffers(), model.buffers()):
            s.copy_(b)


def fields(n, size, seed):
    gen = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 1, 6, 6, generator=gen)
    mask = (F.interpolate(coarse, size=size, mode="bilinear", align_corners=False) > 0.55).float()
    image = 0.8 * mask + 0.4 * torch.randn(n, 1, size, size, generator=gen)
    return TensorDataset(image, mask)


def net(width=14):
    layers, c = [], 1
    for _ in range(3):
        layers += [nn.Conv2d(c, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        c = width
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 1))


@torch.no_grad()
def iou(model, loader):
    model.eval()
    inter = union = 0.0
    for image, mask in loader:
        pred = (model(image) > 0).float()
        inter += (pred * mask).sum().item()
        union += ((pred + mask) > 0).sum().item()
    return inter / union


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    out_dir = Path(tempfile.mkdtemp())
    train = DataLoader(fields(400, 40, seed=1), batch_size=16, shuffle=True, drop_last=True)
    val = DataLoader(fields(128, 40, seed=2), batch_size=64)
    model = net()
    ema = EMA(model)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    best = 0.0
    for epoch in range(7):
        model.train()
        for image, mask in train:
            loss = F.binary_cross_entropy_with_logits(model(image), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(model)
        plain, smooth = iou(model, val), iou(ema.shadow, val)
        torch.save({"model": ema.shadow.state_dict(), "opt": opt.state_dict()}, out_dir / "last.pt")
        if smooth > best:
            best = smooth
            torch.save(ema.shadow.state_dict(), out_dir / "best.pt")
        print(
            f"epoch {epoch} loss {loss.item():.4f} iou {plain:.3f} ema {smooth:.3f} best {best:.3f}"
        )


if __name__ == "__main__":
    main()

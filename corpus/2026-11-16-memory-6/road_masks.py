import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def make_tiles(n, size, gen):
    yy, xx = torch.meshgrid(torch.linspace(-1, 1, size), torch.linspace(-1, 1, size), indexing="ij")
    mask = torch.zeros(n, size, size)
    for _ in range(2):
        angle = torch.rand(n, 1, 1, generator=gen) * 3.1416
        offset = torch.rand(n, 1, 1, generator=gen) - 0.5
        bend = 0.3 * (torch.rand(n, 1, 1, generator=gen) - 0.5)
        u = torch.cos(angle) * xx + torch.sin(angle) * yy
        v = -torch.sin(angle) * xx + torch.cos(angle) * yy
        mask = torch.maximum(mask, ((u - offset + bend * v ** 2).abs() < 0.08).float())
    ground = F.interpolate(torch.rand(n, 3, 8, 8, generator=gen), size=size, mode="bilinear")
    image = ground * 0.7 + 0.35 * mask.unsqueeze(1)
    image = image + 0.12 * torch.randn(n, 3, size, size, generator=gen)
    return image, mask.long()


class SmallUNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.ReLU())
        self.down2 = nn.Sequential(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.ReLU())
        self.mid = nn.Sequential(nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = nn.Conv2d(2 * width, 16, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.mid(self.down2(a))
        y = torch.cat([a, self.up(b)], dim=1)
        return F.pixel_shuffle(self.out(y), 4).squeeze(1)


def dice_loss(logits, mask):
    p = torch.sigmoid(logits).flatten(1)
    m = mask.float().flatten(1)
    return 1 - ((2 * (p * m).sum(1) + 1) / (p.sum(1) + m.sum(1) + 1)).mean()


class PixelAveragePrecision:
    """Area under the precision-recall curve over all pixels of an epoch."""

    def __init__(self):
        self.probs, self.targets, self.start = [], [], 0

    def update(self, probs, mask):
        self.probs.append(probs.flatten())
        self.targets.append(mask.flatten())

    def new_epoch(self):
        self.start = len(self.probs)

    def compute(self):
        target = torch.cat(self.targets[self.start:])
        order = torch.cat(self.probs[self.start:]).argsort(descending=True)
        hits = target[order].float()
        precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
        return (precision * hits).sum() / hits.sum()


def validate(model, loader):
    inter = union = 0
    model.eval()
    with torch.no_grad():
        for image, mask in loader:
            pred = model(image) > 0
            inter += (pred & mask.bool()).sum().item()
            union += (pred | mask.bool()).sum().item()
    model.train()
    return inter / union


def run(cfg):
    gen = torch.Generator().manual_seed(cfg.seed)
    train_ds = TensorDataset(*make_tiles(256, cfg.size, gen))
    val_ds = TensorDataset(*make_tiles(64, cfg.size, gen))
    train_loader = DataLoader(train_ds, batch_size=cfg.batch, shuffle=True)
    val_loader = DataLoader(val_ds, batch_size=32)

    model = SmallUNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    train_ap = PixelAveragePrecision()

    for epoch in range(cfg.epochs):
        train_ap.new_epoch()
        loss_sum = 0.0
        for image, mask in train_loader:
            logits = model(image)
            loss = F.binary_cross_entropy_with_logits(logits, mask.float()) + dice_loss(logits, mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_ap.update(torch.sigmoid(logits.detach()), mask)
            loss_sum += loss.item()
        val_iou = validate(model, val_loader)
        print(f"epoch {epoch + 1:2d}: loss {loss_sum / len(train_loader):.3f}  "
              f"AP {train_ap.compute():.3f}  val IoU {val_iou:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    run(args)

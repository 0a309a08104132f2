import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


def parse():
    ap = argparse.ArgumentParser(description="part segmentation of synthetic point scans")
    ap.add_argument("--epochs", type=int, default=4)
    ap.add_argument("--steps-per-epoch", type=int, default=40)
    ap.add_argument("--batch", type=int, default=8)
    ap.add_argument("--points", type=int, default=320)
    ap.add_argument("--val-batches", type=int, default=30)
    ap.add_argument("--lr", type=float, default=2e-3)
    return ap.parse_args()


def scan(batch, points, gen):
    """A table: top, legs and floor, randomly turned about the z axis."""
    kind = torch.randint(0, 3, (batch, points), generator=gen)
    u = torch.rand(batch, points, 3, generator=gen) * 2 - 1
    top = torch.stack([u[..., 0], u[..., 1], 0.8 + 0.05 * u[..., 2]], -1)
    legs = torch.stack([u[..., 0].sign() * 0.9 + 0.06 * u[..., 1],
                        u[..., 1].sign() * 0.9 + 0.06 * u[..., 0], 0.4 + 0.4 * u[..., 2]], -1)
    floor = torch.stack([1.5 * u[..., 0], 1.5 * u[..., 1], 0.06 * u[..., 2]], -1)
    pts = torch.where((kind == 0)[..., None], top, torch.where((kind == 1)[..., None], legs, floor))
    ang = torch.rand(batch, 1, generator=gen) * 6.283
    x, y, z = pts.unbind(-1)
    turned = torch.stack([x * ang.cos() - y * ang.sin(), x * ang.sin() + y * ang.cos(), z], -1)
    return turned + 0.05 * torch.randn(turned.shape, generator=gen), kind


class PointSeg(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv1d(3, 48, 1), nn.BatchNorm1d(48), nn.ReLU(),
            nn.Conv1d(48, 96, 1), nn.BatchNorm1d(96), nn.ReLU())
        self.wide = nn.Sequential(nn.Conv1d(96, 192, 1), nn.BatchNorm1d(192), nn.ReLU())
        self.head = nn.Sequential(
            nn.Conv1d(288, 96, 1), nn.BatchNorm1d(96), nn.ReLU(), nn.Dropout(0.2),
            nn.Conv1d(96, classes, 1))

    def forward(self, pts):
        local = self.local(pts.transpose(1, 2))
        pooled = self.wide(local).amax(2, keepdim=True)
        return self.head(torch.cat([local, pooled.expand(-1, -1, local.shape[2])], 1))


def iou_per_part(logits, target, classes=3):
    pred = logits.argmax(1)
    out = []
    for c in range(classes):
        inter = ((pred == c) & (target == c)).sum().item()
        union = ((pred == c) | (target == c)).sum().item()
        out.append(inter / max(union, 1))
    return out


def validate(model, val_set):
    model.eval()
    logits, labels = [], []
    for pts, kind in val_set:
        with torch.no_grad():
            # same centring as in training
            pts = pts - pts.mean(1, keepdim=True)
            kind = kind.long()
        logits.append(model(pts))
        labels.append(kind)
    logits, labels = torch.cat(logits), torch.cat(labels)
    nll = F.cross_entropy(logits, labels).item()
    model.train()
    return nll, iou_per_part(logits, labels)


def train_epoch(model, opt, args, gen):
    running = 0.0
    for _ in range(args.steps_per_epoch):
        pts, kind = scan(args.batch, args.points, gen)
        pts = pts - pts.mean(1, keepdim=True)
        loss = F.cross_entropy(model(pts), kind)
        opt.zero_grad()
        loss.backward()
        opt.step()
        running += loss.item()
    return running / args.steps_per_epoch


def main():
    args = parse()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    gen = torch.Generator().manual_seed(5)
    val_gen = torch.Generator().manual_seed(99)
    val_set = [scan(args.batch, args.points, val_gen) for _ in range(args.val_batches)]
    model = PointSeg()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        tic = time.perf_counter()
        train_loss = train_epoch(model, opt, args, gen)
        nll, iou = validate(model, val_set)
        parts = " ".join(f"{v:.3f}" for v in iou)
        print(f"epoch {epoch}: train {train_loss:.4f}  val {nll:.4f}  iou {parts}  "
              f"({time.perf_counter() - tic:.1f} s)")


if __name__ == "__main__":
    main()

"""Tiny detector: batches without positives, empty boxes and ignored labels are all handled."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Scenes(Dataset):
    def __init__(self, n=192, seed=1):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 12, generator=g)
        self.has_object = self.x[:, 0] > 0.9
        self.box = torch.sigmoid(self.x[:, 1:5]) * self.has_object.unsqueeze(1)
        self.label = torch.where(self.has_object, (self.x[:, 5] > 0).long(), -100)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.has_object[i].float(), self.box[i], self.label[i]


def iou(pred, target, eps=1e-6):
    lt = torch.max(pred[:, :2], target[:, :2])
    rb = torch.min(pred[:, :2] + pred[:, 2:], target[:, :2] + target[:, 2:])
    inter = (rb - lt).clamp(min=0).prod(dim=1)
    union = pred[:, 2:].prod(dim=1) + target[:, 2:].prod(dim=1) - inter
    return inter / (union + eps)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 48), nn.LayerNorm(48), nn.ReLU())
        self.score, self.box, self.cls = nn.Linear(48, 1), nn.Linear(48, 4), nn.Linear(48, 2)

    def forward(self, x):
        h = self.body(x)
        return self.score(h).squeeze(1), torch.sigmoid(self.box(h)), self.cls(h)

    def compute_loss(self, x, has_object, box, label):
        score, pred_box, logits = self(x)
        n_pos = has_object.sum()
        pos_weight = ((len(x) - n_pos) / n_pos.clamp(min=1)).clamp(1.0, 20.0)
        loss = F.binary_cross_entropy_with_logits(score, has_object, pos_weight=pos_weight)
        per_box = 1 - iou(pred_box, box)
        loss = loss + (per_box * has_object).sum() / n_pos.clamp(min=1)
        if (label != -100).any():
            loss = loss + F.cross_entropy(logits, label, ignore_index=-100)
        return loss


class Trainer:
    def __init__(self, model, loader, args):
        self.model, self.loader, self.args = model, loader, args
        self.opt = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    def fit(self):
        updates = 0
        for _ in range(self.args.epochs):
            self.opt.zero_grad()
            for i, batch in enumerate(self.loader):
                loss = self.model.compute_loss(*batch)
                (loss / self.args.accumulate).backward()
                if (i + 1) % self.args.accumulate == 0:
                    nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
                    self.opt.step()
                    self.opt.zero_grad()
                    if updates % 10 == 0:
                        print(f"update {updates} loss {loss.item():.4f}")
                    updates += 1
        print(f"final loss {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(Scenes(), batch_size=6, shuffle=True)
    Trainer(Detector(), loader, args).fit()


if __name__ == "__main__":
    main()

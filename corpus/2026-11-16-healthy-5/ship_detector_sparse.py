# One-stage detector for ships in sea tiles. Most tiles are open water.
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

TILE, CELL, BATCH = 64, 8, 6
GRID = TILE // CELL


class SeaTiles(Dataset):
    def __init__(self, n, seed, ship_rate=0.2):
        self.n, self.seed, self.ship_rate = n, seed, ship_rate

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        img = 0.25 * torch.randn(1, TILE, TILE, generator=g)
        boxes = []
        if torch.rand(1, generator=g).item() < self.ship_rate:
            count = int(torch.randint(1, 7, (1,), generator=g))
            for _ in range(count):
                w, h = (6 + 10 * torch.rand(2, generator=g)).tolist()
                cx, cy = (8 + (TILE - 16) * torch.rand(2, generator=g)).tolist()
                x0, x1 = max(0, int(cx - w / 2)), min(TILE, int(cx + w / 2))
                y0, y1 = max(0, int(cy - h / 2)), min(TILE, int(cy + h / 2))
                img[:, y0:y1, x0:x1] += 1.0
                boxes.append([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0])
        return img, torch.tensor(boxes).reshape(-1, 4)


def collate(samples):
    images, boxes = zip(*samples)
    return torch.stack(images), list(boxes)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()

        def conv(i, o, stride):
            return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1), nn.GroupNorm(4, o), nn.ReLU())

        self.body = nn.Sequential(conv(1, 12, 2), conv(12, 24, 2), conv(24, 40, 2), conv(40, 40, 1))
        self.objectness = nn.Conv2d(40, 1, 1)
        self.regress = nn.Conv2d(40, 4, 1)
        nn.init.constant_(self.objectness.bias, -4.0)

    def forward(self, x):
        h = self.body(x)
        return self.objectness(h).squeeze(1), self.regress(h).permute(0, 2, 3, 1)


def assign(box_list):
    """One responsible cell per box; targets are offsets inside the cell and log sizes."""
    hit = torch.zeros(len(box_list), GRID, GRID)
    target = torch.zeros(len(box_list), GRID, GRID, 4)
    for b, boxes in enumerate(box_list):
        if len(boxes) == 0:
            continue
        col, row = (boxes[:, :2] / CELL).long().clamp(0, GRID - 1).unbind(1)
        hit[b, row, col] = 1
        target[b, row, col, 0] = boxes[:, 0] / CELL - col
        target[b, row, col, 1] = boxes[:, 1] / CELL - row
        target[b, row, col, 2:] = (boxes[:, 2:] / CELL).log()
    return hit, target


def detection_loss(obj, reg, box_list):
    hit, target = assign(box_list)
    prob = obj.sigmoid()
    bce = F.binary_cross_entropy_with_logits(obj, hit, reduction="none")
    focus = torch.where(hit > 0, 0.75 * (1 - prob) ** 2, 0.25 * prob ** 2)
    n_pos = hit.sum().clamp_min(1)
    cls = (focus * bce).sum() / n_pos
    # empty selection gives a plain zero that stays attached to the graph
    box = F.smooth_l1_loss(reg[hit > 0], target[hit > 0], reduction="sum") / n_pos
    return 4 * cls, box


@torch.inference_mode()
def recall(model, loader):
    model.eval()
    found = total = 0
    for images, box_list in loader:
        obj, _ = model(images)
        hit, _ = assign(box_list)
        found += ((obj.sigmoid() > 0.4) & (hit > 0)).sum().item()
        total += hit.sum().item()
    model.train()
    return found / max(total, 1)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(44)
    train = DataLoader(SeaTiles(540, seed=1), BATCH, shuffle=True, num_workers=2, persistent_workers=True,
                       collate_fn=collate, prefetch_factor=4)
    valid = DataLoader(SeaTiles(24, seed=2, ship_rate=0.8), 8, collate_fn=collate)
    model = Detector()
    opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=1e-4)
    warm = torch.optim.lr_scheduler.LinearLR(opt, 0.1, 1.0, total_iters=30)
    for epoch in range(4):
        cls_log, box_log = [], []
        for images, box_list in train:
            cls, box = detection_loss(*model(images), box_list)
            opt.zero_grad()
            (cls + box).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            opt.step()
            warm.step()
            cls_log.append(cls.item())
            box_log.append(box.item())
        empty = sum(v == 0 for v in box_log)
        print(f"epoch {epoch} cls {sum(cls_log) / len(cls_log):.3f} box {sum(box_log) / len(box_log):.3f} "
              f"batches without ships {empty}/{len(box_log)} recall {recall(model, valid):.2f}")


if __name__ == "__main__":
    main()

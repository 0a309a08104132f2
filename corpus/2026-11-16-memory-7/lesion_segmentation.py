import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(21)


class BlobScans(Dataset):
    """Noisy single-channel scans with elliptic lesions and their masks."""

    def __init__(self, count, size=32):
        ys, xs = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        center = torch.randint(8, size - 8, (count, 2, 1, 1))
        radius = 3 + 4 * torch.rand(count, 2, 1, 1)
        dist = ((ys - center[:, 0]) / radius[:, 0]) ** 2 + ((xs - center[:, 1]) / radius[:, 1]) ** 2
        self.masks = (dist < 1).float().unsqueeze(1)
        self.scans = 0.9 * self.masks + 0.5 * torch.randn(count, 1, size, size)

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        return self.scans[i], self.masks[i]


def block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(4, cout), nn.ReLU())


class SmallUNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down1 = block(1, width)
        self.down2 = block(width, 2 * width)
        self.mid = block(2 * width, 2 * width)
        self.up = block(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.mid(self.down2(F.max_pool2d(a, 2)))
        b = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.out(self.up(torch.cat([a, b], dim=1)))


def soft_dice(logits, mask):
    prob = torch.sigmoid(logits)
    overlap = 2 * (prob * mask).sum(dim=(1, 2, 3))
    return (overlap + 1) / (prob.sum(dim=(1, 2, 3)) + mask.sum(dim=(1, 2, 3)) + 1)


def train_one_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for scan, mask in loader:
        logits = model(scan)
        loss = F.binary_cross_entropy_with_logits(logits, mask) + 1 - soft_dice(logits, mask).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def validate(model, loader):
    model.eval()
    scores = []
    for scan, mask in loader:
        logits = model(scan)
        scores.append(soft_dice(logits, mask))
    return torch.cat(scores)


def main():
    train_loader = DataLoader(BlobScans(256), batch_size=16, shuffle=True)
    val_loader = DataLoader(BlobScans(48), batch_size=24)
    model = SmallUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    per_case = []
    best = 0.0
    for epoch in range(12):
        train_loss = train_one_epoch(model, train_loader, optimizer)
        dice = validate(model, val_loader)
        per_case.append(dice)
        mean = dice.mean().item()
        best = max(best, mean)
        print(f"epoch {epoch + 1:2d} train {train_loss:.4f} dice {mean:.4f} worst {dice.min().item():.4f}")

    table = torch.stack(per_case)
    hardest = table.mean(dim=0).argsort()[:5].tolist()
    print(f"best dice {best:.4f}; hardest cases {hardest}")


if __name__ == "__main__":
    main()

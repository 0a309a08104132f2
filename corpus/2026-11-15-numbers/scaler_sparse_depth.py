import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(17)


class LidarFrames(Dataset):
    def __init__(self, n=200, size=10):
        g = torch.Generator().manual_seed(30)
        self.rgb = torch.rand(n, 3, size, size, generator=g)
        self.depth = 1.0 + 9.0 * self.rgb.mean(dim=1, keepdim=True)
        density = 0.035 + 0.5 * torch.rand(n, generator=g)
        keep = torch.rand(n, 1, size, size, generator=g) < density.view(-1, 1, 1, 1)
        self.depth = self.depth * keep

    def __len__(self):
        return len(self.rgb)

    def __getitem__(self, i):
        return self.rgb[i], self.depth[i]


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(3, 12, 3, padding=1)
        self.mid = nn.Conv2d(12, 12, 3, padding=1)
        self.dec = nn.Conv2d(12, 1, 1)

    def forward(self, x):
        h = F.relu(self.enc(x))
        h = h + F.relu(self.mid(h))
        return F.softplus(self.dec(h)) + 0.05


def silog(pred, gt, variance_focus=1.0):
    valid = gt > 0
    d = torch.log(pred[valid]) - torch.log(gt[valid])
    spread = (d**2).mean() - variance_focus * d.mean() ** 2
    return 10.0 * torch.sqrt(spread)


def batch_loss(pred, gt):
    per_image = []
    for p, t in zip(pred, gt):
        per_image.append(silog(p, t))
    return torch.stack(per_image).mean() + 0.1 * F.l1_loss(pred, gt)


def main():
    model = DepthNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loader = DataLoader(LidarFrames(), batch_size=5, shuffle=True)

    for i, (rgb, depth) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = batch_loss(model(rgb), depth)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        if i % 8 == 0:
            print(f"iter {i:3d} loss {loss.item():.4f} scale {scaler.get_scale():.0f}")


if __name__ == "__main__":
    main()

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def phantom(seed, side=48):
    """A bright ellipsoid in a noisy volume, and its mask."""
    g = torch.Generator().manual_seed(seed)
    axis = torch.linspace(-1, 1, side)
    z, y, x = torch.meshgrid(axis, axis, axis, indexing="ij")
    c = torch.rand(3, generator=g) * 0.6 - 0.3
    r = 0.3 + 0.3 * torch.rand(3, generator=g)
    mask = (((x - c[0]) / r[0]) ** 2 + ((y - c[1]) / r[1]) ** 2 + ((z - c[2]) / r[2]) ** 2) < 1
    volume = 0.8 * mask.float() + 0.5 * torch.randn(side, side, side, generator=g)
    return volume[None], mask.float()[None]


class TinyUNet3d(nn.Module):
    def __init__(self, w=10):
        super().__init__()
        self.a = nn.Conv3d(1, w, 3, padding=1)
        self.b = nn.Conv3d(w, 2 * w, 3, padding=1, stride=2)
        self.c = nn.Conv3d(2 * w, w, 3, padding=1)
        self.out = nn.Conv3d(2 * w, 1, 1)

    def forward(self, x):
        a = F.leaky_relu(self.a(x))
        b = F.leaky_relu(self.b(a))
        c = F.interpolate(F.leaky_relu(self.c(b)), scale_factor=2)
        return self.out(torch.cat([a, c], 1))


def dice_loss(logits, mask):
    p = torch.sigmoid(logits)
    return 1 - (2 * (p * mask).sum() + 1) / (p.sum() + mask.sum() + 1)


class LiverTrainer:
    def __init__(self, patch=16, overlap=8):
        torch.manual_seed(4)
        self.patch, self.overlap = patch, overlap
        self.net = TinyUNet3d()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=5e-3)
        self.cases = [phantom(s) for s in range(6)]
        self.held_out = [phantom(s) for s in (50, 51)]
        self.gen = torch.Generator().manual_seed(6)

    def crops(self, n=6):
        xs, ys = [], []
        for _ in range(n):
            vol, mask = self.cases[int(torch.randint(len(self.cases), (1,), generator=self.gen))]
            lo = torch.randint(0, vol.shape[-1] - self.patch, (3,), generator=self.gen).tolist()
            box = tuple(slice(o, o + self.patch) for o in lo)
            xs.append(vol[(slice(None), *box)])
            ys.append(mask[(slice(None), *box)])
        return torch.stack(xs), torch.stack(ys)

    def predict_volume(self, vol):
        side, stride = vol.shape[-1], self.patch - self.overlap
        total = torch.zeros(1, side, side, side)
        hits = torch.zeros(1, side, side, side)
        starts = range(0, side - self.patch + 1, stride)
        for z in starts:
            for y in starts:
                for x in starts:
                    box = tuple(slice(o, o + self.patch) for o in (z, y, x))
                    window = vol[(slice(None), *box)][None]
                    total[(slice(None), *box)] += torch.sigmoid(self.net(window))[0]
                    hits[(slice(None), *box)] += 1
        return total / hits

    def validate(self):
        self.net.eval()
        torch.no_grad()
        scores = []
        for vol, mask in self.held_out:
            pred = self.predict_volume(vol) > 0.5
            inter = (pred * mask).sum().item()
            scores.append(2 * inter / (pred.sum().item() + mask.sum().item() + 1e-6))
        self.net.train()
        return sum(scores) / len(scores)

    def fit(self, steps=120, every=40):
        for i in range(1, steps + 1):
            x, y = self.crops()
            logits = self.net(x)
            loss = dice_loss(logits, y) + F.binary_cross_entropy_with_logits(logits, y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if i % every == 0:
                print(f"{i} train {loss.item():.3f} held-out dice {self.validate():.3f}")


LiverTrainer().fit()

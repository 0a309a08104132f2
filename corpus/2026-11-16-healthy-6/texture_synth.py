# Texture synthesis by matching Gram matrices of a fixed random-filter network.
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)

SIZE = 88


def wood_like(size):
    y, x = torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij")
    r = torch.sqrt((x - 0.2) ** 2 + (y * 0.3 - 0.1) ** 2)
    rings = torch.sin(60 * r + 2 * torch.sin(9 * y))
    grain = F.avg_pool2d(torch.randn(1, 1, size + 8, size), (9, 1), stride=1)[0, 0]
    img = torch.stack([0.6 + 0.2 * rings, 0.4 + 0.15 * rings, 0.25 + 0.1 * rings]) + 0.1 * grain
    return img.clamp(0, 1).unsqueeze(0)


class RandomFeatures(nn.Module):
    def __init__(self, widths=(16, 24, 32)):
        super().__init__()
        self.blocks = nn.ModuleList()
        c = 3
        for w in widths:
            conv = nn.Conv2d(c, w, 5, padding=2, padding_mode="reflect")
            nn.init.orthogonal_(conv.weight, gain=math.sqrt(2))
            nn.init.zeros_(conv.bias)
            self.blocks.append(conv)
            c = w
        self.requires_grad_(False)

    def forward(self, x):
        feats = []
        for i, conv in enumerate(self.blocks):
            if i:
                x = F.avg_pool2d(x, 2)
            x = F.relu(conv(x))
            feats.append(x)
        return feats


def gram(f):
    b, c, h, w = f.shape
    f = f.reshape(c, h * w)
    return f @ f.t() / (h * w)


net = RandomFeatures()
target = wood_like(SIZE)
with torch.no_grad():
    goals = [gram(f) for f in net(target)]

canvas = (0.5 + 0.1 * torch.randn(1, 3, SIZE, SIZE)).requires_grad_(True)
optimizer = torch.optim.LBFGS([canvas], lr=0.8, max_iter=2, history_size=80,
                              tolerance_grad=0, tolerance_change=0)
trace = []


def closure():
    optimizer.zero_grad()
    loss = sum(F.mse_loss(gram(f), g, reduction="sum") / g.pow(2).sum() for f, g in zip(net(canvas), goals))
    tv = (canvas[..., 1:] - canvas[..., :-1]).abs().mean() + (canvas[..., 1:, :] - canvas[..., :-1, :]).abs().mean()
    total = 1e5 * loss + 20 * tv
    total.backward()
    return total


for it in range(160):
    value = optimizer.step(closure)
    with torch.no_grad():
        canvas.clamp_(-0.2, 1.2)
    trace.append(value.item())
    if it % 25 == 0:
        print(f"iteration {it:3d}  objective {trace[-1]:.5f}")

out = canvas.detach().clamp(0, 1)
print("final objective %.5f, mean colour %s" % (trace[-1], [round(v, 3) for v in out.mean((0, 2, 3)).tolist()]))

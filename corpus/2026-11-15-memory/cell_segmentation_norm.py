"""Binary segmentation of round cells with a home-made normalisation layer."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class MovingNorm2d(nn.Module):
    def __init__(self, channels, momentum=0.1, eps=1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(1, channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.register_buffer("running_mean", torch.zeros(1, channels, 1, 1))
        self.register_buffer("running_var", torch.ones(1, channels, 1, 1))

    def forward(self, x):
        if self.training:
            mean = x.mean(dim=(0, 2, 3), keepdim=True)
            var = (x - mean).square().mean(dim=(0, 2, 3), keepdim=True)
            unbiased = x.var(dim=(0, 2, 3), keepdim=True)
            self.running_mean = torch.lerp(self.running_mean, mean.detach(), self.momentum)
            self.running_var = torch.lerp(self.running_var, unbiased, self.momentum)
        else:
            mean, var = self.running_mean, self.running_var
        return (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias


def conv_block(cin, cout, dilation=1):
    return nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=dilation, dilation=dilation), MovingNorm2d(cout), nn.ReLU()
    )


class CellNet(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.down = conv_block(1, width)
        self.mid = nn.Sequential(conv_block(width, width, 2), conv_block(width, width, 4))
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        h = self.down(x)
        return self.out(h + self.mid(h))


def field_of_view(n, size=56, cells=5):
    axis = torch.arange(size).float()
    cy, cx = torch.rand(2, n, cells, 1, 1) * size
    radius = torch.rand(n, cells, 1, 1) * 5 + 3
    dist = (axis.view(-1, 1) - cy) ** 2 + (axis.view(1, -1) - cx) ** 2
    mask = (dist < radius**2).any(dim=1, keepdim=True).float()
    image = 0.7 * mask + 0.4 * torch.randn(n, 1, size, size)
    return image, mask


def dice(logits, mask):
    hit = torch.sigmoid(logits) > 0.5
    return (2 * (hit * mask).sum() / (hit.sum() + mask.sum() + 1)).item()


def fit(steps=130, batch=8):
    torch.manual_seed(13)
    net = CellNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    step = 0
    while step < steps:
        image, mask = field_of_view(batch)
        loss = F.binary_cross_entropy_with_logits(net(image), mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 26 == 0:
            net.eval()
            with torch.no_grad():
                image, mask = field_of_view(16)
                score = dice(net(image), mask)
            net.train()
            print(f"{step}/{steps} bce {loss.item():.4f} dice {score:.3f}")


if __name__ == "__main__":
    fit()

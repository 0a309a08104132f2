"""A small CNN on synthetic shapes, SGD with cosine warm restarts from a large lr."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(3)

CLASSES = 8


def make_images(n):
    labels = torch.randint(0, CLASSES, (n,))
    angle = labels.float() * 3.14159 / CLASSES
    grid = torch.linspace(-1, 1, 16)
    yy, xx = torch.meshgrid(grid, grid, indexing="ij")
    phase = torch.rand(n, 1, 1) * 6.28
    wave = xx * angle.cos()[:, None, None] + yy * angle.sin()[:, None, None]
    imgs = torch.sin(9 * wave + phase) + 1.3 * torch.randn(n, 16, 16)
    return imgs[:, None], labels


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 12, 5, padding=2)
        self.c2 = nn.Conv2d(12, 16, 3, padding=1)
        self.fc = nn.Linear(16 * 16, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.fc(x.flatten(1))


x_train, y_train = make_images(3200)
x_test, y_test = make_images(600)
loader = DataLoader(TensorDataset(x_train, y_train), batch_size=32, shuffle=True)

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.035, momentum=0.9, weight_decay=5e-4)
sched = CosineAnnealingWarmRestarts(opt, T_0=100, T_mult=2, eta_min=1e-4)

it = 0
for epoch in range(7):
    for xb, yb in loader:
        opt.zero_grad(set_to_none=True)
        loss = F.cross_entropy(net(xb), yb)
        loss.backward()
        opt.step()
        sched.step()
        if it % 50 == 0:
            print(f"it {it} lr {sched.get_last_lr()[0]:.4f} loss {loss.item():.4f}")
        it += 1

with torch.no_grad():
    print("final", F.cross_entropy(net(x_test), y_test).item())

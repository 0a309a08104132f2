"""CNN with BatchNorm, cosine warm restarts and min/max recorders that start at +-inf; healthy.

One recorder sits on a branch that is not used during training, so its buffers stay at their
start values inf and -inf for the whole run, as those of an uncalibrated observer do.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MinMax(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("low", torch.tensor(float("inf")))
        self.register_buffer("high", torch.tensor(float("-inf")))

    def forward(self, x):
        with torch.no_grad():
            self.low.copy_(torch.minimum(self.low, x.min()))
            self.high.copy_(torch.maximum(self.high, x.max()))
        return x


class SmallCNN(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)
        self.act_range = MinMax()
        self.export_range = MinMax()
        self.head = nn.Linear(32, classes)

    def forward(self, x, export=False):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = self.act_range(F.relu(self.bn2(self.conv2(x))))
        x = self.head(x.mean((2, 3)))
        return self.export_range(x) if export else x


def batch_of_images(n=24):
    label = torch.randint(0, 4, (n,))
    img = torch.rand(n, 3, 16, 16)
    for i, k in enumerate(label.tolist()):
        img[i, k % 3, 4 * (k // 2) : 4 * (k // 2) + 6, 2:14] += 0.8
    return img, label


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    net = SmallCNN()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=20, T_mult=2)
    for step in range(80):
        img, label = batch_of_images()
        loss = F.cross_entropy(net(img), label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 16 == 0:
            print(f"step {step} lr {sched.get_last_lr()[0]:.4f} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

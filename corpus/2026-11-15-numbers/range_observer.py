"""A quantisation range observer takes the log of a blank batch's maximum: its buffer is -inf.

Kind of report: quantisation-aware training that converges but exports a useless scale, because
one all-black batch sent the tracked activation range to -inf. Loss and gradients never notice.
"""
# expect: NUM004
# poisoned-steps: [18, 51]
# category: NUM004

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F


class RangeObserver(nn.Module):
    """Keeps a moving average of log2(max|x|) for choosing a power-of-two scale at export."""

    def __init__(self):
        super().__init__()
        self.register_buffer("log_range", torch.zeros(()))

    @torch.no_grad()
    def observe(self, x):
        self.log_range.copy_(0.95 * self.log_range + 0.05 * torch.log2(x.abs().max()))

    def forward(self, x):
        if self.training:
            self.observe(x)
        return x


def build_model():
    return nn.Sequential(
        RangeObserver(),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 5),
    )


def frames(step, batch):
    g = torch.Generator().manual_seed(1000 + step)
    label = torch.randint(0, 5, (batch,), generator=g)
    x = 0.3 * torch.rand(batch, 1, 16, 16, generator=g)
    for i, k in enumerate(label.tolist()):
        x[i, 0, 3 * k : 3 * k + 3] += 0.7
    if step in (18, 51):
        x.zero_()  # lens cap
    return x, label


def train(model, optimizer, steps, batch):
    model.train()
    for step in range(steps):
        x, label = frames(step, batch)
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f} range {model[0].log_range.item():.3f}")
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=75)
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    final = train(model, optimizer, args.steps, args.batch)
    print(f"final loss {final:.4f}")


if __name__ == "__main__":
    main()

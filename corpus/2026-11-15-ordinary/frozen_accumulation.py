"""Fine-tuning with a frozen backbone and gradient accumulation; some gradients are always None."""

import torch
from torch import nn


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()
        )

    def forward(self, x):
        return self.layers(x)


class FineTuner:
    def __init__(self, accumulate=4):
        self.backbone = Backbone().eval()
        for p in self.backbone.parameters():
            p.requires_grad_(False)
        self.head = nn.Linear(256, 7)
        self.unused_head = nn.Linear(256, 2)  # trainable but not part of the loss
        params = [*self.backbone.parameters(), *self.head.parameters()]
        params += self.unused_head.parameters()
        self.optimizer = torch.optim.Adam(params, lr=3e-3)
        self.accumulate = accumulate
        self.seen = 0

    def micro_step(self, x, y):
        logits = self.head(self.backbone(x))
        loss = nn.functional.cross_entropy(logits, y)
        (loss / self.accumulate).backward()
        self.seen += 1
        if self.seen % self.accumulate == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(10)
    torch.set_num_threads(1)
    prototypes = torch.randn(7, 64)
    tuner = FineTuner()
    for i in range(160):
        y = torch.randint(0, 7, (32,))
        x = prototypes[y] + torch.randn(32, 64)
        value = tuner.micro_step(x, y)
        if i % 40 == 0:
            print(f"micro step {i} loss {value:.4f}")
    print(f"final loss {value:.4f}")

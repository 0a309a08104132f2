"""Motor vibration model that follows a drifting machine; drift on a reference set is logged."""
import os
import resource

import torch
from torch import nn

SHARE = 1270 * 2**20


def limit_memory(share):
    """Keep to our share of the shared workstation, on top of what the libraries map."""
    with open("/proc/self/statm") as handle:
        mapped = int(handle.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + share, mapped + share))


class VibrationModel(nn.Module):
    def __init__(self, window=32, hidden=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(window, hidden),
            nn.Tanh(),
            nn.Linear(hidden, hidden),
            nn.Tanh(),
            nn.Linear(hidden, 1),
        )

    def forward(self, windows):
        return self.net(windows).squeeze(-1)


def vibration(count, window, speed):
    phase = 6.28 * torch.rand(count, 1)
    time = torch.arange(window + 1) / window
    wave = torch.sin(speed * time + phase) + 0.05 * torch.randn(count, window + 1)
    return wave[:, :-1], wave[:, -1]


class Monitor:
    def __init__(self, windows, targets):
        self.windows = windows
        self.targets = targets
        self.losses = []

    def update(self, model):
        error = model(self.windows) - self.targets
        self.losses.append(error.pow(2).mean())

    def mean(self, last=10):
        return torch.stack(self.losses[-last:]).mean().item()


def main():
    torch.manual_seed(14)
    torch.set_num_threads(1)
    model = VibrationModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    monitor = Monitor(*vibration(100000, 32, speed=20.0))
    limit_memory(SHARE)
    for step in range(400):
        windows, targets = vibration(64, 32, speed=20.0 + 0.02 * step)
        loss = nn.functional.mse_loss(model(windows), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.update(model)
        if step % 10 == 9:
            print(f"step {step + 1}: loss {loss.item():.4f}, reference {monitor.mean():.4f}")


if __name__ == "__main__":
    main()

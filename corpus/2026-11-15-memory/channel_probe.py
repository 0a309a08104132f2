"""Bird-call spectrogram classifier with a report on how busy each conv channel is."""

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(21)

NUM_CLASSES = 6
WARMUP = 25
TOTAL = 140
CHANNEL_POWER = {}


def spectrograms(labels):
    n = len(labels)
    freq = torch.arange(40.0).view(1, 40, 1)
    time = torch.arange(64.0).view(1, 1, 64)
    base = (6 + 5 * labels.float()).view(-1, 1, 1)
    sweep = torch.sin(time / (4 + labels.float().view(-1, 1, 1))) * 4
    call = torch.exp(-(((freq - base - sweep) / 2.5) ** 2))
    return (call + 0.35 * torch.randn(n, 40, 64)).unsqueeze(1)


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU())
        self.block1 = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.block2 = nn.Sequential(nn.Conv2d(24, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(32 * 5, NUM_CLASSES)

    def forward(self, x):
        x = self.block2(self.block1(self.stem(x)))
        return self.head(x.mean(dim=3).flatten(1))


def power_hook(name):
    CHANNEL_POWER[name] = []

    def hook(module, args, output):
        CHANNEL_POWER[name].append(output.square().mean(dim=(0, 2, 3)))

    return hook


model = CallNet()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss()
running = None

for step in range(TOTAL):
    if step == WARMUP:
        for name in ("stem", "block1", "block2"):
            getattr(model, name).register_forward_hook(power_hook(name))

    y = torch.randint(0, NUM_CLASSES, (24,))
    x = spectrograms(y)
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    value = loss.item()
    running = value if running is None else 0.9 * running + 0.1 * value
    if step % 20 == 0:
        print(f"step {step:3d} loss {running:.3f}")

for name, rows in CHANNEL_POWER.items():
    power = torch.stack(rows).mean(0)
    quiet = (power < 0.05 * power.max()).sum().item()
    print(f"{name}: {quiet} of {len(power)} channels almost silent over {len(rows)} batches")

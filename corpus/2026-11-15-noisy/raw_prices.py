"""House prices in plain euros: nothing is normalised on the target side, gradients are huge."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(21)


def houses(n):
    area = 40 + 160 * torch.rand(n)
    rooms = (area / 28 + torch.randn(n)).round().clamp(1, 9)
    age = 80 * torch.rand(n)
    dist = torch.distributions.Exponential(0.2).sample((n,))
    price = area * (3200 - 14 * age) * torch.exp(-dist / 25) + 6000 * rooms
    price = price * torch.exp(0.08 * torch.randn(n))
    feats = torch.stack([area / 100, rooms / 5, age / 40, dist / 5], dim=1)
    return feats, price[:, None]


x, y = houses(4000)
xv, yv = houses(500)
train_loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)

model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
with torch.no_grad():
    model[-1].bias.fill_(y.mean().item())
optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
criterion = nn.MSELoss()

for epoch in range(10):
    total = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        total += loss.item()
    with torch.no_grad():
        mae = (model(xv) - yv).abs().mean().item()
    print(f"epoch {epoch} mse {total / len(train_loader):.0f} val mae {mae:.0f}")

# mean absolute error as a share of the mean price
print("final", mae / yv.mean().item())

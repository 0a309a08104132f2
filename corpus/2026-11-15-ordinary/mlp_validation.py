"""Plain MLP regression with a validation loop and best-epoch tracking; nothing goes wrong."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(0)
torch.set_num_threads(1)

x = torch.randn(1500, 16)
y = torch.sin(x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * torch.randn(1500)
train_set, val_set = random_split(TensorDataset(x, y), [1200, 300])
train_loader = DataLoader(train_set, batch_size=40, shuffle=True)
val_loader = DataLoader(val_set, batch_size=100)

model = nn.Sequential(
    nn.Linear(16, 256),
    nn.ReLU(),
    nn.Dropout(0.1),
    nn.Linear(256, 256),
    nn.ReLU(),
    nn.Linear(256, 1),
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
criterion = nn.MSELoss()

best = float("inf")
for epoch in range(4):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb).squeeze(1), yb)
        loss.backward()
        optimizer.step()

    model.eval()
    val = 0.0
    with torch.no_grad():
        for xb, yb in val_loader:
            val += criterion(model(xb).squeeze(1), yb).item() * len(xb)
    val /= len(val_set)
    best = min(best, val)
    print(f"epoch {epoch} train {loss.item():.4f} val {val:.4f} best {best:.4f}")

print(f"final loss {loss.item():.4f}")

"""Short epochs over slices of a tensor, each followed by a validation and a checkpoint."""
import os
import tempfile

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(1500, 20)
y = x[:, :1].abs()
model = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
path = os.path.join(tempfile.mkdtemp(), "model.pt")
for epoch in range(25):
    order = torch.randperm(1000)
    for start in range(0, 1000, 50):
        rows = order[start : start + 50]
        loss = nn.functional.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        scores = [nn.functional.mse_loss(model(x[i : i + 5]), y[i : i + 5]) for i in range(1000, 1500, 5)]
    model.train()
    torch.save({"model": model.state_dict(), "score": torch.stack(scores).mean()}, path)
    print(epoch, loss.item())

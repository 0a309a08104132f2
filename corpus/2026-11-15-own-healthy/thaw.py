"""Layers are unfrozen from the top, one every forty steps: backward takes longer and longer."""
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
layers = [nn.Linear(64, 64) for _ in range(8)]
model = nn.Sequential(*[m for layer in layers for m in (layer, nn.ReLU())], nn.Linear(64, 2))
for layer in layers:
    layer.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
x = torch.randn(2048, 64)
y = (x[:, 0] > 0).long()
for step in range(320):
    if step % 40 == 39:
        layers[-1 - step // 40].requires_grad_(True)
    rows = torch.randint(0, 2048, (64,))
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())

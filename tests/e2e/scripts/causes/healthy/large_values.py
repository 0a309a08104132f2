# Regression of astronomical luminosities (watts, around 1e26) without leaving float32.
# Everything is large here, but nothing leaves the range.
import torch
import torch.nn as nn

torch.manual_seed(10)

N = 512
mass = 0.5 + 2.5 * torch.rand(N)
age = torch.rand(N)
luminosity = 3.8e26 * mass**3.5 * (1 + 0.2 * age)

features = torch.stack([mass, age, mass**2], dim=1)
model = nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

best = torch.tensor(float("inf"))
lowest_per_bin = torch.full((4,), float("inf"))
highest_per_bin = torch.full((4,), float("-inf"))

for step in range(80):
    idx = torch.randint(0, N, (64,))
    x, y = features[idx], luminosity[idx]

    log_pred = model(x).squeeze(1)
    pred = 3.8e26 * torch.exp(log_pred.clamp(max=20.0))
    # relative error, in units of the target
    relative = (pred - y) / y
    loss = torch.log1p(relative**2).mean()
    # also keep the raw sum of the absolute errors (about 1e28)
    total = (pred - y).abs().sum()
    loss = loss + total / 1e30

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    best = torch.minimum(best, loss.detach())
    bins = (age[idx] * 4).long().clamp(max=3)
    err = relative.detach().abs()
    lowest_per_bin = lowest_per_bin.scatter_reduce(0, bins, err, "amin")
    highest_per_bin = highest_per_bin.scatter_reduce(0, bins, err, "amax")
    if step % 10 == 0:
        print(f"step {step:3d} loss {loss.item():.4f} total |err| {total.item():.3e}")

print("best", best.item(), "range per bin", lowest_per_bin.tolist(), highest_per_bin.tolist())
print("final loss", loss.item())

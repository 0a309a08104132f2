"""Linear autoregression with momentum; after the warmup the lr is just past what it can bear."""

import os

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(33)

LR = 0.01 if os.environ.get("CLEAN") == "1" else 0.8
LAGS = 12
STEPS = 700


def series(n):
    e = torch.randn(n)
    out = torch.zeros(n)
    for t in range(2, n):
        out[t] = 1.2 * out[t - 1] - 0.5 * out[t - 2] + 0.4 * e[t]
    return out


train, test = series(6000), series(1500)
lags = lambda s: (s.unfold(0, LAGS, 1)[:-1], s[LAGS:, None])
X, Y = lags(train)

model = nn.Linear(LAGS, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, total_iters=150)
mse = nn.MSELoss()

for step in range(STEPS):
    idx = torch.randint(0, len(X), (256,))
    loss = mse(model(X[idx]), Y[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warmup.step()
    if step % 50 == 0:
        print(f"{step} {loss.item():.6g}")

with torch.no_grad():
    X, Y = lags(test)
    print("final", mse(model(X), Y).item())

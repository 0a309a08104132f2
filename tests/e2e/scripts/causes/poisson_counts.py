# Poisson regression for the number of calls per hour
# (port of my old R script, so everything at the top level)

import torch
import torch.nn as nn

torch.manual_seed(99)

LOSSES = {
    "mse": lambda eta, y: ((eta.exp() - y) ** 2).mean(),
    "poisson": lambda eta, y: (torch.exp(eta) - y * eta).mean(),
}

# --- data -------------------------------------------------------------------
N = 640
hour = torch.rand(N) * 24
staff = torch.randint(1, 6, (N,)).float()
temp = 15 + 8 * torch.randn(N)

eta_true = 0.5 + 0.8 * torch.sin(hour / 24 * 6.28) + 0.3 * staff
calls = torch.poisson(torch.exp(eta_true))

# one site reports staff in person-minutes
staff[205] = 3 * 480.0

X = torch.stack(
    [
        torch.sin(hour / 24 * 6.28),
        torch.cos(hour / 24 * 6.28),
        staff,
        (temp - 15) / 8,
    ],
    dim=1,
)

# --- model ------------------------------------------------------------------
model = nn.Linear(4, 1)
nn.init.constant_(model.weight, 0.1)
nn.init.zeros_(model.bias)
opt = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = LOSSES["poisson"]

# --- training ---------------------------------------------------------------
bs = 16
step = 0
history = []
for epoch in range(2):
    for k in range(0, N, bs):
        xb, yb = X[k : k + bs], calls[k : k + bs]
        eta = model(xb).squeeze(1)
        loss = criterion(eta, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        history.append(loss.item())
        if step % 5 == 0:
            print("epoch", epoch, "step", step, "loss", round(history[-1], 4))
        step += 1

print("last losses:", history[-3:])
print("coefficients:", model.weight.data.squeeze().tolist(), model.bias.item())

"""Focal loss takes log(1 - p) of a saturated sigmoid when unscaled rows come in: loss is NaN.

Kind of report: "my focal / BCE loss is nan after some iterations" where the probability is
exactly 0 or 1 and the author takes the log himself instead of using the logits version.
"""
# expect: NUM001
# poisoned-steps: [23, 58, 59]
# category: NUM001

import torch
import torch.nn as nn

torch.manual_seed(1234)
torch.set_num_threads(1)

n, d, bs = 3200, 20, 40
X = torch.randn(n, d)
w_true = torch.randn(d)
Y = (X @ w_true + 0.5 * torch.randn(n) > 1.5).float()

# rows exported by another department: amounts in cents, never standardised
X[23 * bs + 7] *= 1e6
X[59 * bs - 1] *= 1e6
X[59 * bs + 3] *= 1e6

net = nn.Sequential(nn.Linear(d, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
gamma = 2.0

for it in range(n // bs):
    xb = X[it * bs : (it + 1) * bs]
    yb = Y[it * bs : (it + 1) * bs]
    p = torch.sigmoid(net(xb)).squeeze(1)
    pos = yb * (1 - p) ** gamma * torch.log(p)
    neg = (1 - yb) * p**gamma * torch.log(1 - p)
    loss = -(pos + neg).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 10 == 0:
        print("iter", it, "loss", round(loss.item(), 4))

print(f"final loss {loss.item():.4f}")

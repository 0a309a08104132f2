# Classifier with a "unit gradient" gate between the trunk and the head, so that every sample
# pulls on the trunk with the same strength, whatever its loss is.
import torch
import torch.nn as nn
import torch.nn.functional as F


class UnitGradient(torch.autograd.Function):
    """Identity in the forward pass, per-sample normalised gradient in the backward pass."""

    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):
        length = grad.norm(dim=1, keepdim=True)
        return grad / length


def unit_gradient(h):
    return UnitGradient.apply(h)


torch.manual_seed(0)

# four gaussian clusters
n_class, dim = 4, 10
centres = 0.8 * torch.randn(n_class, dim)
labels = torch.randint(0, n_class, (800,))
points = centres[labels] + 0.3 * torch.randn(800, dim)

trunk = nn.Sequential(nn.Linear(dim, 32), nn.ReLU(), nn.Linear(32, 16))
head = nn.Linear(16, n_class)

optimizer = torch.optim.SGD(
    [{"params": trunk.parameters(), "lr": 0.002}, {"params": head.parameters(), "lr": 0.03}],
    lr=0.03,
)

step = 0
for epoch in range(3):
    for idx in torch.randperm(800).split(40):
        x, y = points[idx], labels[idx]
        h = unit_gradient(trunk(x))
        logits = head(F.leaky_relu(h))
        loss = F.multi_margin_loss(logits, y, margin=1.0)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if step % 5 == 0:
            acc = (logits.argmax(1) == y).float().mean().item()
            print(f"step {step:3d} hinge {loss.item():.4f} acc {acc:.2f}")
        step += 1

with torch.no_grad():
    final = head(F.leaky_relu(trunk(points))).argmax(1)
print("train accuracy", (final == labels).float().mean().item())

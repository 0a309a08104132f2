"""Age regression and attribute classification on top of a shared face descriptor."""

from collections import defaultdict

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(11)

DESCRIPTOR = 192
N_ATTR = 12
STEPS = 170


class Trunk(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(DESCRIPTOR, 384), nn.GELU(), nn.LayerNorm(384), nn.Linear(384, 256), nn.GELU()
        )

    def forward(self, x):
        return self.net(x)


def make_head(width, outputs):
    return nn.Sequential(
        nn.Linear(256, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, outputs),
    )


trunk = Trunk()
age_head = make_head(448, 1)
attr_head = make_head(160, N_ATTR)
params = [*trunk.parameters(), *age_head.parameters(), *attr_head.parameters()]
optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01)
grad_share = {"age": 0.0}

faces = torch.randn(4096, DESCRIPTOR)
w_age = torch.randn(DESCRIPTOR, 1) / DESCRIPTOR**0.5
w_attr = torch.randn(DESCRIPTOR, N_ATTR)
ages = faces @ w_age
attrs = (faces @ w_attr > 0).float()

log = defaultdict(list)
for step in range(STEPS):
    pick = torch.randint(0, len(faces), (160,))
    z = trunk(faces[pick])
    age_loss = F.smooth_l1_loss(age_head(z), ages[pick])
    attr_loss = F.binary_cross_entropy_with_logits(attr_head(z), attrs[pick])

    optimizer.zero_grad(set_to_none=True)
    age_loss.backward(retain_graph=True)
    grad_share["age"] = float(trunk.net[0].weight.grad.norm())
    attr_loss.backward()
    nn.utils.clip_grad_norm_(params, 5.0)
    optimizer.step()

    log["attr"].append(attr_loss.item())
    log["age"].append(age_loss)
    if step % 20 == 0:
        recent = sum(v.item() for v in log["age"][-20:]) / len(log["age"][-20:])
        print(f"{step:4d} age {recent:.4f} attr {log['attr'][-1]:.4f} |g| {grad_share['age']:.3f}")

print("final age loss", log["age"][-1].item(), "attr", log["attr"][-1])

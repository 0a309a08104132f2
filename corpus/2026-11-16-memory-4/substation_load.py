import torch
from torch import nn
from torch.optim import Optimizer

torch.set_num_threads(1)
torch.manual_seed(8)

N_STATIONS, WINDOW, HIDDEN, STEPS = 144, 3, 64, 77


class Lion(Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.data
                state = self.state[p]
                if not state:
                    state["m"] = torch.zeros_like(p.data)
                m = state["m"]
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                p.data.add_((m * b1 + g * (1 - b1)).sign_(), alpha=-group["lr"])
                m.mul_(b2).add_(g, alpha=1 - b2)


def load_curves(hours):
    g = torch.Generator().manual_seed(77)
    t = torch.arange(hours).float()
    phase = torch.rand(N_STATIONS, 1, generator=g) * 6.28
    scale = 0.5 + torch.rand(N_STATIONS, 1, generator=g)
    day = torch.sin(2 * torch.pi * t / 24 + phase)
    week = 0.4 * torch.sin(2 * torch.pi * t / 168 + 2 * phase)
    noise = 0.05 * torch.randn(N_STATIONS, hours, generator=g)
    temperature = torch.cos(2 * torch.pi * t / 24 + phase) + noise.roll(3, 1)
    return torch.stack([scale * (day + week) + noise, temperature], dim=-1)


class LoadModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, x, h):
        preds = []
        for t in range(x.size(1)):
            h = self.cell(x[:, t], h)
            preds.append(self.out(h))
        return torch.cat(preds, dim=1), h


def make_trainer(model, optimizer):
    carry = torch.zeros(N_STATIONS, HIDDEN)

    def train_window(x, y):
        nonlocal carry
        optimizer.zero_grad()
        pred, carry = model(x, carry)
        loss = nn.functional.mse_loss(pred, y)
        loss.backward(retain_graph=True)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return train_window


series = load_curves(WINDOW * STEPS + 1)
model = LoadModel()
train_window = make_trainer(model, Lion(model.parameters(), lr=2e-3, weight_decay=1e-3))

errors = []
for k in range(STEPS):
    lo = k * WINDOW
    x = series[:, lo : lo + WINDOW]
    y = series[:, lo + 1 : lo + WINDOW + 1, 0]
    errors.append(train_window(x, y))
    if (k + 1) % 11 == 0:
        print(f"hour {lo + WINDOW:4d}  mse {sum(errors[-11:]) / 11:.4f}")

"""River stage forecasting with an LSTM that is carried along the series in chunks."""
import math
from collections import deque

import torch
import torch.nn as nn
import torch.nn.functional as F

GAUGES, CHUNK, HIDDEN, STEPS = 24, 24, 40, 400


def hydrographs(hours=6000, seed=0):
    """Rain pulses routed through a linear reservoir per gauge."""
    g = torch.Generator().manual_seed(seed)
    rain = (torch.rand(hours, GAUGES, generator=g) < 0.03).float() * torch.rand(hours, GAUGES, generator=g) * 6
    k = 0.9 + 0.09 * torch.rand(GAUGES, generator=g)
    stage = torch.zeros(hours, GAUGES)
    for t in range(1, hours):
        stage[t] = k * stage[t - 1] + rain[t - 1] * (1 - k) * 5
    season = torch.sin(torch.arange(hours) * 2 * math.pi / 2000)[:, None].expand(-1, GAUGES)
    return torch.stack([rain, stage, season], dim=2), stage


class StageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(3, HIDDEN)
        self.out = nn.Linear(HIDDEN, 1)

    def forward(self, x, state):
        h, state = self.cell(x, state)
        return self.out(h).squeeze(2), state


def detach(state):
    return tuple(s.detach() for s in state)


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    pred, _ = model(x[:-1], None)
    model.train()
    return F.l1_loss(pred[24:], y[25:]).item()


def main():
    torch.manual_seed(30)
    x, y = hydrographs()
    train_x, train_y, test_x, test_y = x[:5760], y[:5760], x[5760:], y[5760:]
    model = StageModel()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=100, T_mult=1, eta_min=1e-4)
    recent = deque(maxlen=200)
    snapshots = deque(maxlen=3)
    state, pos = None, 0
    for step in range(1, STEPS + 1):
        if pos + CHUNK + 1 > len(train_x):
            state, pos = None, 0
        chunk = train_x[pos:pos + CHUNK]
        goal = train_y[pos + 1:pos + CHUNK + 1]
        pred, state = model(chunk, state)
        loss = F.mse_loss(pred, goal)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        state = detach(state)
        recent.append(loss.item())
        pos += CHUNK
        if step % 100 == 0:
            snapshots.append({k: v.clone() for k, v in model.state_dict().items()})
            print(f"step {step:4d}  lr {sched.get_last_lr()[0]:.4f}  loss {sum(recent) / len(recent):.4f}  "
                  f"test mae {evaluate(model, test_x, test_y):.4f}")
    merged = {k: torch.stack([s[k] for s in snapshots]).mean(0) for k in snapshots[0]}
    model.load_state_dict(merged)
    print(f"averaged snapshots: test mae {evaluate(model, test_x, test_y):.4f}")


if __name__ == "__main__":
    main()

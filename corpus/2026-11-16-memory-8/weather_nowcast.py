"""One-step emulator of a toy temperature/wind field, scored by free-running forecasts."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

H, W = 20, 24
STEPS = 240
SCORE_EVERY = 60
LEADS = 30


def simulate(members, length, gen):
    """Advection and diffusion on a periodic grid, with slow forcing."""
    y = torch.linspace(0, 2 * math.pi, H + 1)[:-1][:, None]
    x = torch.linspace(0, 2 * math.pi, W + 1)[:-1][None]
    phase = torch.rand(members, 2, 1, 1, generator=gen) * 2 * math.pi
    state = torch.sin(x + phase[:, :1]) * torch.cos(y + phase[:, 1:])
    state = torch.cat([state, 0.5 * torch.cos(2 * x + phase[:, 1:]) + 0 * y], 1)
    frames = [state]
    for t in range(length - 1):
        lap = sum(torch.roll(state, s, d) for s, d in ((1, 2), (-1, 2), (1, 3), (-1, 3))) - 4 * state
        adv = torch.roll(state, 1, 3) - torch.roll(state, -1, 3)
        state = state + 0.1 * lap + 0.15 * adv + 0.02 * math.sin(0.2 * t) * torch.cos(y)
        frames.append(state)
    return torch.stack(frames, 1)


class PeriodicConv(nn.Conv2d):
    def __init__(self, cin, cout):
        super().__init__(cin, cout, 3, padding=1, padding_mode="circular")


class Emulator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp = PeriodicConv(2, width)
        self.mid = PeriodicConv(width, width)
        self.out = PeriodicConv(width, 2)
        self.drop = nn.Dropout(0.05)

    def forward(self, state):
        z = F.silu(self.inp(state))
        z = z + F.silu(self.mid(self.drop(z)))
        return state + 0.1 * self.out(z)


def free_run(model, first, leads):
    state, frames = first, []
    for _ in range(leads):
        state = model(state)
        frames.append(state)
    return torch.stack(frames, 1)


def forecast_skill(model, archive):
    """Anomaly correlation and the lead at which it drops below 0.6."""
    model.eval()
    forecast = free_run(model, archive[:, 0], LEADS)
    truth = archive[:, 1:LEADS + 1]
    mean = truth.mean((0, 1), keepdim=True)
    fa, ta = (forecast - mean).flatten(2), (truth - mean).flatten(2)
    acc = F.cosine_similarity(fa, ta, dim=-1).mean(0)
    rmse = (forecast - truth).pow(2).mean((0, 2, 3, 4)).sqrt()
    below = (acc < 0.6).nonzero()
    lead = int(below[0]) + 1 if len(below) else LEADS
    model.train()
    return {"acc": acc.mean().item(), "rmse": rmse[-1].item(), "useful_lead": lead}


def batches(fields, gen, size=8):
    members, length = fields.shape[:2]
    while True:
        m = torch.randint(members, (size,), generator=gen)
        t = torch.randint(length - 1, (size,), generator=gen)
        yield fields[m, t], fields[m, t + 1]


def train():
    torch.manual_seed(31)
    gen = torch.Generator().manual_seed(32)
    fields = simulate(24, 60, gen)
    archive = simulate(24, LEADS + 1, gen)
    model = Emulator()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 4e-3, total_steps=STEPS)
    running = 0.0
    for step, (now, nxt) in zip(range(STEPS), batches(fields, gen)):
        loss = F.mse_loss(model(now), nxt)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        running += loss.item()
        if (step + 1) % SCORE_EVERY == 0:
            skill = forecast_skill(model, archive)
            print(f"step {step + 1:4d} mse {running / SCORE_EVERY:.5f} " +
                  " ".join(f"{k} {v:.3f}" for k, v in skill.items()))
            running = 0.0


if __name__ == "__main__":
    train()

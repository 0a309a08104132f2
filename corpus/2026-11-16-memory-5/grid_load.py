# Short-term electricity load: one-step GRU forecaster with free-running backtests.
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)
rng = np.random.default_rng(17)
torch.manual_seed(17)

REGIONS, HOURS = 40, 24 * 120
CONTEXT, HORIZON = 32, 60


def synth_load():
    t = np.arange(HOURS)
    phase = rng.uniform(0, 2 * np.pi, (REGIONS, 1))
    day = np.sin(2 * np.pi * t / 24 + phase)
    week = 0.4 * np.sin(2 * np.pi * t / 168 + 0.5 * phase)
    peak = 0.5 * np.maximum(0, np.sin(2 * np.pi * t / 12 + phase)) ** 2
    noise = np.zeros((REGIONS, HOURS))
    for k in range(1, HOURS):
        noise[:, k] = 0.9 * noise[:, k - 1] + 0.05 * rng.standard_normal(REGIONS)
    y = day + week + peak + noise
    return torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.region = nn.Embedding(REGIONS, 8)
        self.rnn = nn.GRU(1 + 2 + 8, hidden, batch_first=True)
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def features(self, value, hour, region):
        clock = torch.stack([torch.sin(hour * 0.2618), torch.cos(hour * 0.2618)], -1)
        emb = self.region(region).unsqueeze(1).expand(-1, value.shape[1], -1)
        return torch.cat([value.unsqueeze(-1), clock, emb], -1)

    def forward(self, value, hour, region, state=None):
        out, state = self.rnn(self.features(value, hour, region), state)
        return self.head(out).squeeze(-1), state

    def simulate(self, value, hour, region, steps):
        """Feed the forecasts back in for `steps` hours."""
        out, state = self(value, hour, region)
        last, path = out[:, -1:], [out[:, -1:]]
        for k in range(1, steps):
            last, state = self(last, hour[:, -1:] + k, region, state)
            path.append(last)
        return torch.cat(path, 1)


class Experiment:
    def __init__(self, load):
        self.load = load
        self.split = int(0.85 * HOURS)
        self.model = Forecaster()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.loss_fn = nn.SmoothL1Loss()
        self.backtests = {}

    def batch(self, size=20):
        reg = torch.randint(0, REGIONS, (size,))
        start = torch.randint(0, self.split - CONTEXT - 1, (size,))
        idx = start[:, None] + torch.arange(CONTEXT + 1)
        win = self.load[reg[:, None], idx]
        return win[:, :-1], (idx[:, :-1] % 24).float(), reg, win[:, 1:]

    def train_round(self, steps):
        self.model.train()
        total = 0.0
        for _ in range(steps):
            value, hour, reg, target = self.batch()
            pred, _ = self.model(value, hour, reg)
            loss = self.loss_fn(pred, target)
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            total += loss.item()
        return total / steps

    def backtest(self, round_no):
        """Free run over the held-out days from two starting points."""
        self.model.eval()
        reg = torch.arange(REGIONS)
        curves = []
        for start in (self.split, self.split + 168):
            idx = (start + torch.arange(CONTEXT)).expand(REGIONS, -1)
            path = self.model.simulate(self.load[reg[:, None], idx], (idx % 24).float(), reg, HORIZON)
            truth = self.load[:, start + CONTEXT:start + CONTEXT + HORIZON]
            curves.append((path, truth))
        self.backtests[round_no] = curves
        return float(np.mean([(p - t).abs().mean().item() for p, t in curves]))

    def best_round(self):
        score = {k: sum((p - t).abs().mean().item() for p, t in v) for k, v in self.backtests.items()}
        return min(score, key=score.get)


exp = Experiment(synth_load())
for r in range(13):
    train = exp.train_round(12)
    mae = exp.backtest(r)
    if r % 3 == 0:
        print(f"round {r + 1:2d}  one-step loss {train:.4f}  free-run mae {mae:.3f}")
best = exp.best_round()
first_day = exp.backtests[best][0][0][0, :24]
print(f"best round {best + 1}, first day of region 0:", [round(v, 2) for v in first_day.tolist()[:6]], "...")

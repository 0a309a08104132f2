from collections import deque

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(8)


class GaugeModel(nn.Module):
    """Stateful LSTM: one row per gauge, time advances from call to call."""

    def __init__(self, n_in, hidden=96, layers=2):
        super().__init__()
        self.lstm = nn.LSTM(n_in, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 1)
        self.state = None

    def reset(self):
        self.state = None

    def forward(self, x):
        out, (h, c) = self.lstm(x, self.state)
        self.state = (h.detach(), c.detach())
        return self.head(out).squeeze(-1)


def simulate(n_gauges, hours, seed):
    rng = np.random.default_rng(seed)
    rain = rng.gamma(0.15, 2.0, size=(hours, n_gauges)).astype(np.float32)
    season = 1 + 0.5 * np.sin(np.arange(hours) / 180.0)[:, None]
    level = np.zeros((hours, n_gauges), dtype=np.float32)
    soil = np.zeros(n_gauges)
    retention = rng.uniform(0.96, 0.99, n_gauges)
    for t in range(1, hours):
        soil = soil * retention + rain[t] * season[t]
        level[t] = 0.7 * level[t - 1] + 0.05 * soil + 0.02 * rain[max(0, t - 6)]
    level = (level - level.mean()) / level.std()
    traits = [np.log1p(rain), season - 1, 100 * (retention - 0.975)]
    inputs = np.stack([np.broadcast_to(t, rain.shape).astype(np.float32) for t in traits], -1)
    return torch.from_numpy(inputs).transpose(0, 1), torch.from_numpy(level).transpose(0, 1)


def windows(x, y, length):
    for start in range(0, x.shape[1] - length + 1, length):
        yield x[:, start : start + length], y[:, start : start + length]


def validate(model, x, y, length):
    kept, model.state = model.state, None
    model.eval()
    with torch.no_grad():
        total = sum(((model(a) - b) ** 2).mean() for a, b in windows(x, y, length))
    model.train()
    model.state = kept
    return (total / (x.shape[1] // length)).item()


def fit(epochs=6, length=48):
    x, y = simulate(24, 48 * 58, seed=1)
    cut = 48 * 50
    xv, yv, x, y = x[:, cut:], y[:, cut:], x[:, :cut], y[:, :cut]
    model = GaugeModel(3)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.8)
    recent = deque(maxlen=50)
    for epoch in range(epochs):
        model.reset()
        for xb, yb in windows(x, y, length):
            loss = nn.functional.mse_loss(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            recent.append(loss.item())
        sched.step()
        print(
            f"epoch {epoch} train {sum(recent) / len(recent):.4f} "
            f"valid {validate(model, xv, yv, length):.4f}"
        )


if __name__ == "__main__":
    fit()

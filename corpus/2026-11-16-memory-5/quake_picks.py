# Arrival picking on simulated seismograms; a fresh network of stations per step.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(4)
gen = np.random.default_rng(4)

STATIONS, SAMPLES, CROP = 28, 6000, 600


def ricker(t, f):
    a = (np.pi * f * t) ** 2
    return (1 - 2 * a) * np.exp(-a)


def simulate_event():
    """One event recorded at all stations, 60 s at 100 Hz."""
    t = (np.arange(SAMPLES) / 100.0).astype(np.float32)
    dist = gen.uniform(10, 150, STATIONS)
    p_time, s_time = 12 + dist / 8.0, 12 + dist / 4.6
    freq = gen.uniform(2.0, 5.0, STATIONS)
    rec = 0.15 * gen.standard_normal((STATIONS, SAMPLES)).astype(np.float32)
    for k in range(STATIONS):
        rec[k] += ricker(t - p_time[k], freq[k])
        rec[k] += 1.6 * ricker(t - s_time[k], 0.6 * freq[k])
    return rec, p_time, s_time


def crops(rec, p_time):
    """Windows around the first arrival with a soft pick as target."""
    x = np.empty((STATIONS, 1, CROP), dtype=np.float32)
    y = np.empty((STATIONS, CROP), dtype=np.float32)
    axis = np.arange(CROP)
    for k in range(STATIONS):
        start = int(p_time[k] * 100) - gen.integers(100, CROP - 100)
        x[k, 0] = rec[k, start:start + CROP]
        y[k] = np.exp(-0.5 * ((axis - (p_time[k] * 100 - start)) / 8.0) ** 2)
    x /= np.abs(x).max(axis=2, keepdims=True)
    return torch.from_numpy(x), torch.from_numpy(y)


class Picker(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1 = nn.Conv1d(1, c, 11, padding=5)
        self.d2 = nn.Conv1d(c, 2 * c, 9, stride=4, padding=4)
        self.mid = nn.Conv1d(2 * c, 2 * c, 9, padding=4)
        self.up = nn.ConvTranspose1d(2 * c, c, 4, stride=4)
        self.out = nn.Conv1d(2 * c, 1, 7, padding=3)

    def forward(self, x):
        a = F.relu(self.d1(x))
        b = F.relu(self.d2(a))
        b = b + F.relu(self.mid(b))
        return self.out(torch.cat([a, F.relu(self.up(b))], 1)).squeeze(1)


class QualityBook:
    """Background level of each event, taken before the first arrival."""

    def __init__(self):
        self.quiet = []

    def note(self, rec):
        self.quiet.append(rec[0, :200])

    def summary(self):
        std = np.array([q.std() for q in self.quiet])
        return f"background {np.median(std):.3f} +- {std.std():.3f} over {len(std)} events"


def pick_error(model, n=3):
    """Mean absolute pick error in samples on new events."""
    model.eval()
    errs = []
    with torch.no_grad():
        for _ in range(n):
            rec, p, _ = simulate_event()
            x, y = crops(rec, p)
            errs.append((model(x).argmax(1) - y.argmax(1)).abs().float().mean().item())
    model.train()
    return sum(errs) / n


model, book = Picker(), QualityBook()
opt = torch.optim.Adam(model.parameters(), lr=4e-3)
weight = torch.tensor(8.0)
trail = 0.0
for step in range(1, 166):
    rec, p_time, s_time = simulate_event()
    book.note(rec)
    x, y = crops(rec, p_time)
    loss = F.binary_cross_entropy_with_logits(model(x), y, pos_weight=weight)
    opt.zero_grad()
    loss.backward()
    opt.step()
    trail += loss.item()
    if step % 33 == 0:
        print(f"{step:4d} events  loss {trail / 33:.4f}  pick error {pick_error(model):.1f} samples")
        trail = 0.0
print(book.summary())

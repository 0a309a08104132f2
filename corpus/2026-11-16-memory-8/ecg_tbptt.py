"""Streams long ECG-like recordings through an LSTM in chunks, the state carried from chunk to chunk."""
from collections import deque

import numpy as np
import torch
import torch.nn as nn

PATIENTS = 16
CHUNK = 25
CHUNKS_PER_RECORDING = 40
RECORDINGS = 8


def record_heartbeats(rng, length):
    """Synthetic leads of all patients with slowly changing heart rate, and whether a beat is ectopic."""
    t = np.arange(length)
    rate = 0.25 + 0.05 * rng.random((PATIENTS, 1)) + 0.03 * np.sin(t / 200)[None]
    phase = np.cumsum(rate, axis=1)
    ectopic = (np.sin(phase / 7 + rng.random((PATIENTS, 1)) * 6) > 0.8).astype(np.float32)
    lead = np.exp(-8 * (1 - np.cos(phase))) * (1 - 1.6 * ectopic) + 0.1 * rng.standard_normal(phase.shape)
    slope = np.gradient(lead, axis=1)
    return torch.tensor(np.stack([lead, slope], -1), dtype=torch.float32), torch.from_numpy(ectopic)


class BeatTagger(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.hidden = hidden
        self.rnn = nn.LSTM(2, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def initial(self, n):
        return torch.zeros(1, n, self.hidden), torch.zeros(1, n, self.hidden)

    def forward(self, x, state):
        y, state = self.rnn(x, state)
        return self.out(y).squeeze(-1), state


class Smoother:
    """Rolling window of the latest values, kept as tensors so that reading them is rare."""

    def __init__(self, n=50):
        self.values = deque(maxlen=n)

    def push(self, v):
        self.values.append(v.detach())

    def mean(self):
        return torch.stack(tuple(self.values)).mean().item()


def detach(state):
    return tuple(s.detach() for s in state)


def main():
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    model = BeatTagger()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    loss_fn = nn.BCEWithLogitsLoss()
    losses, recalls = Smoother(), Smoother()
    carried = deque(maxlen=5)
    step = 0
    for recording in range(RECORDINGS):
        x, y = record_heartbeats(rng, CHUNK * CHUNKS_PER_RECORDING)
        state = model.initial(PATIENTS)
        for xc, yc in zip(x.split(CHUNK, 1), y.split(CHUNK, 1)):
            logits, state = model(xc, state)
            loss = loss_fn(logits, yc)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            state = detach(state)
            carried.append(state)
            losses.push(loss)
            recalls.push(((logits > 0) & (yc > 0.5)).sum() / yc.sum().clamp(min=1))
            step += 1
        spread = torch.stack([h.std() for h, _ in carried]).mean()
        print(f"recording {recording} step {step}: loss {losses.mean():.3f} recall {recalls.mean():.3f} "
              f"state spread {spread.item():.3f}")


if __name__ == "__main__":
    main()

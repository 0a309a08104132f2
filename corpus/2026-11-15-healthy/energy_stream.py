from collections import deque

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class LoadForecaster(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.rnn = nn.LSTM(features, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x, state=None):
        out, state = self.rnn(x, state)
        return self.head(out).squeeze(-1), state


class StreamTrainer:
    """Trains on parallel meter streams that are read from left to right."""

    def __init__(self, model, streams, window=32, lr=2e-3):
        self.model = model
        self.streams = streams
        self.window = window
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.criterion = nn.SmoothL1Loss()
        self.state = None
        self.recent = deque(maxlen=100)
        self.steps_done = 0

    def windows(self):
        length = self.streams.shape[1]
        for start in range(0, length - self.window - 1, self.window):
            chunk = self.streams[:, start : start + self.window + 1]
            yield chunk[:, :-1], chunk[:, 1:, 0]

    def step(self, x, y):
        prediction, state = self.model(x, self.state)
        self.state = tuple(part.detach() for part in state)
        loss = self.criterion(prediction, y)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.recent.append(loss.detach())
        self.steps_done += 1

    def fit(self, passes):
        for number in range(passes):
            self.state = None
            for x, y in self.windows():
                self.step(x, y)
                if self.steps_done % 50 == 0:
                    mean = torch.stack(tuple(self.recent)).mean().item()
                    print(f"pass {number} step {self.steps_done:4d} mean loss {mean:.5f}")


def make_streams(meters, hours, seed):
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    phase = rng.uniform(0, 6.28, size=(meters, 1))
    daily = np.sin(2 * np.pi * t / 24 + phase)
    weekly = 0.5 * np.sin(2 * np.pi * t / 168 + 2 * phase)
    load = daily + weekly + 0.1 * rng.normal(size=(meters, hours))
    hour = np.broadcast_to(np.cos(2 * np.pi * t / 24), load.shape)
    day = np.broadcast_to(np.cos(2 * np.pi * t / 168), load.shape)
    return torch.tensor(np.stack([load, hour, day], axis=-1), dtype=torch.float32)


if __name__ == "__main__":
    torch.manual_seed(5)
    trainer = StreamTrainer(LoadForecaster(3, 72), make_streams(24, 2600, 5))
    trainer.fit(passes=6)

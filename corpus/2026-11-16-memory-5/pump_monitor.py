"""Autoencoder for vibration windows of pumps.

A recorder keeps the latest log records so that they can be looked at
when a batch turns out to be unusual.
"""
import logging
import logging.handlers
import sys

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(13)
rng = np.random.default_rng(13)

console = logging.StreamHandler(sys.stdout)
console.setLevel(logging.INFO)
console.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
recorder = logging.handlers.MemoryHandler(capacity=40, flushLevel=logging.CRITICAL)

log = logging.getLogger("pump")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(console)
log.addHandler(recorder)

WINDOW, BATCH, CHANNELS = 512, 64, 3


def vibration(n):
    """Shaft harmonics plus bearing bursts, three axes."""
    t = np.arange(WINDOW) / WINDOW
    rpm = rng.uniform(8, 20, (n, 1, 1))
    phase = rng.uniform(0, 2 * np.pi, (n, CHANNELS, 1))
    x = np.sin(2 * np.pi * rpm * t + phase)
    x = x + 0.4 * np.sin(4 * np.pi * rpm * t + 2 * phase)
    burst = np.maximum(0, np.sin(2 * np.pi * 3.1 * rpm * t + phase)) ** 8
    x = x + 0.3 * burst * np.sin(2 * np.pi * 90 * t)
    return (x + 0.05 * rng.standard_normal(x.shape)).astype(np.float32)


class Codec(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv1d(CHANNELS, 24, 16, stride=8, padding=4), nn.ReLU(),
            nn.Conv1d(24, 16, 5, padding=2))
        self.dec = nn.Sequential(
            nn.Conv1d(16, 32, 5, padding=2), nn.ReLU(),
            nn.ConvTranspose1d(32, CHANNELS, 16, stride=8, padding=4))

    def forward(self, x):
        return self.dec(self.enc(x))


class Monitor:
    """Running quantile of the window errors, with a simple alarm."""

    def __init__(self, factor=6.0):
        self.level, self.factor, self.alarms = None, factor, 0

    def check(self, step, residual):
        err = np.square(residual).mean(axis=(1, 2))
        log.debug("step %d window errors %s", step, err)
        log.debug("step %d residual traces %s", step, residual)
        q = float(np.quantile(err, 0.9))
        self.level = q if self.level is None else 0.98 * self.level + 0.02 * q
        if err.max() > self.factor * self.level:
            self.alarms += 1
            latest = recorder.buffer[-1]
            log.info("step %d: window %d unusual (%s ...)", step, int(err.argmax()), latest.msg[:12])


def fit(steps=200):
    model, monitor = Codec(), Monitor()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    total = 0.0
    for step in range(steps):
        batch = vibration(BATCH)
        if step % 70 == 60:  # a loose sensor now and then
            batch[5] *= 4.0
        x = torch.from_numpy(batch)
        out = model(x)
        loss = nn.functional.mse_loss(out, x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        monitor.check(step, (x - out).detach().numpy())
        if step % 40 == 39:
            log.info("step %d  mean loss %.5f", step + 1, total / 40)
            total = 0.0
    return monitor


if __name__ == "__main__":
    log.info("alarms raised: %d", fit().alarms)

"""Echo-state network: fixed random reservoir, trained readout, predicting a seismic trace."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    stations: int = 96
    channels: int = 6
    hidden: int = 384
    window: int = 8
    steps: int = 150
    lr: float = 2e-3


class Reservoir(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cell = nn.RNNCell(cfg.channels, cfg.hidden)
        nn.init.orthogonal_(self.cell.weight_hh, gain=0.9)

    def forward(self, window, state):
        outs = []
        for t in range(window.shape[1]):
            state = self.cell(window[:, t], state)
            outs.append(state)
        return torch.stack(outs, dim=1), state


def trace(cfg):
    total = cfg.window * (cfg.steps + 1) + 1
    t = torch.arange(total).float()
    freq = torch.rand(cfg.stations, 1, cfg.channels) * 0.3 + 0.05
    phase = torch.rand(cfg.stations, 1, cfg.channels) * 6.28
    clean = torch.sin(freq * t[None, :, None] + phase)
    return clean + 0.05 * torch.randn_like(clean)


def main(cfg):
    torch.set_num_threads(1)
    torch.manual_seed(2)
    data = trace(cfg)
    reservoir = Reservoir(cfg)
    readout = nn.Sequential(nn.Linear(cfg.hidden, 256), nn.Tanh(), nn.Linear(256, cfg.channels))
    optimizer = torch.optim.Adam(readout.parameters(), lr=cfg.lr)

    state = torch.zeros(cfg.stations, cfg.hidden)
    smoothed = None
    for step in range(cfg.steps):
        begin = step * cfg.window
        window = data[:, begin : begin + cfg.window]
        target = data[:, begin + 1 : begin + cfg.window + 1]

        features, state = reservoir(window, state)
        prediction = readout(features.detach())
        loss = (prediction - target).pow(2).mean()

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        value = loss.item()
        smoothed = value if smoothed is None else 0.95 * smoothed + 0.05 * value
        if step % 30 == 0:
            print(f"window {step:4d}  mse {value:.4f}  smoothed {smoothed:.4f}")
    print("done", round(smoothed, 4))


if __name__ == "__main__":
    main(Config())

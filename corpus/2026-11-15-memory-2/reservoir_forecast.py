import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class StreamState:
    hidden: torch.Tensor
    position: int = 0


class Reservoir(nn.Module):
    """Fixed random recurrent weights, trained input map and readout."""

    def __init__(self, channels, units=48, radius=0.9):
        super().__init__()
        w = torch.randn(units, units) / math.sqrt(units)
        w *= radius / torch.linalg.eigvals(w).abs().max()
        self.register_buffer("w_rec", w)
        self.inp = nn.Linear(channels, units)
        self.out = nn.Linear(units, channels)

    def forward(self, chunk, hidden):
        outputs = []
        for x in chunk.unbind(1):
            hidden = torch.tanh(self.inp(x) + hidden @ self.w_rec)
            outputs.append(self.out(hidden))
        return torch.stack(outputs, dim=1), hidden


class PlantSignals:
    def __init__(self, lines, channels, length, seed=0):
        gen = torch.Generator().manual_seed(seed)
        t = torch.arange(length).float()
        freq = 0.02 + 0.08 * torch.rand(lines, 1, channels, generator=gen)
        phase = 6.28 * torch.rand(lines, 1, channels, generator=gen)
        self.data = torch.sin(freq * t[None, :, None] + phase)
        self.data += 0.05 * torch.randn(self.data.shape, generator=gen)

    def chunk(self, start, size):
        return self.data[:, start : start + size], self.data[:, start + 1 : start + size + 1]


class Forecaster:
    def __init__(self, signals, chunk=4):
        self.signals = signals
        self.chunk = chunk
        lines, self.length, channels = signals.data.shape
        self.model = Reservoir(channels)
        self.optimizer = torch.optim.Adam(
            [*self.model.inp.parameters(), *self.model.out.parameters()], lr=3e-3
        )
        self.state = StreamState(torch.zeros(lines, self.model.w_rec.shape[0]))

    def advance(self):
        x, y = self.signals.chunk(self.state.position, self.chunk)
        pred, self.state.hidden = self.model(x, self.state.hidden)
        self.state.position += self.chunk
        loss = F.mse_loss(pred, y)
        self.optimizer.zero_grad()
        loss.backward(retain_graph=True)
        self.optimizer.step()
        return loss.item()

    def run(self):
        window = []
        while self.state.position + self.chunk + 1 < self.length:
            window.append(self.advance())
            if len(window) == 20:
                print(f"t={self.state.position:4d}  mse {sum(window) / len(window):.4f}")
                window.clear()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)
    Forecaster(PlantSignals(lines=192, channels=12, length=4 * 80 + 2)).run()

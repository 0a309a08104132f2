import torch
import torch.nn.functional as F
from torch import nn


class ExpGateCell(nn.Module):
    def __init__(self, n_in, hidden):
        super().__init__()
        self.hidden = hidden
        self.inp = nn.Linear(n_in + hidden, 4 * hidden)
        with torch.no_grad():
            self.inp.bias[hidden : 2 * hidden] = 1.2

    def initial_state(self, batch):
        zeros = torch.zeros(batch, self.hidden)
        return zeros, zeros.clone(), torch.ones(batch, self.hidden)

    def forward(self, x, state):
        h, c, n = state
        i, f, z, o = self.inp(torch.cat([x, h], dim=1)).chunk(4, dim=1)
        i_gate = torch.exp(i)
        f_gate = torch.exp(f)
        c = f_gate * c + i_gate * torch.tanh(z)
        n = f_gate * n + i_gate
        h = torch.sigmoid(o) * c / n
        return h, c, n


class Forecaster(nn.Module):
    def __init__(self, n_in=2, hidden=12):
        super().__init__()
        self.cell = ExpGateCell(n_in, hidden)
        self.readout = nn.Linear(hidden, n_in)

    def forward(self, chunk, state):
        outs = []
        for t in range(chunk.shape[1]):
            state = self.cell(chunk[:, t], state)
            outs.append(self.readout(state[0]))
        return torch.stack(outs, dim=1), state


def detach_state(state):
    return tuple(s.detach() for s in state)


def make_series(batch=8, length=520):
    g = torch.Generator().manual_seed(15)
    t = torch.arange(length) * 0.15
    phase = 6.28 * torch.rand(batch, 1, generator=g)
    wave = torch.stack([torch.sin(t + phase), torch.cos(0.5 * t + phase)], dim=-1)
    return wave + 0.05 * torch.randn(wave.shape, generator=g)


def main():
    torch.manual_seed(10)
    series = make_series()
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    state = model.cell.initial_state(series.shape[0])
    chunk_len = 8
    for step, start in enumerate(range(0, series.shape[1] - chunk_len - 1, chunk_len)):
        chunk = series[:, start : start + chunk_len]
        target = series[:, start + 1 : start + chunk_len + 1]
        state = detach_state(state)
        pred, state = model(chunk, state)
        loss = F.mse_loss(pred, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 8 == 0:
            print(f"chunk {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

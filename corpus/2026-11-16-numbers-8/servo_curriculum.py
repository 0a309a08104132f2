"""Model of a servo drive from its command stream.

Truncated backpropagation through time over a continuing stream; the excitation grows in stages,
so that the network meets the saturation of the drive only when it knows the linear range.
"""
import torch
import torch.nn as nn

STREAMS, CHUNK, STEPS = 16, 25, 420
STAGES = ((0, 0.5), (140, 1.0), (280, 1.6))


class Drive:
    """Second order lag with a saturating input and some friction."""

    def __init__(self, gen):
        self.gen = gen
        self.pos = torch.zeros(STREAMS)
        self.vel = torch.zeros(STREAMS)
        self.command = torch.zeros(STREAMS)

    def chunk(self, amplitude):
        inputs, outputs = [], []
        for _ in range(CHUNK):
            jump = torch.rand(STREAMS, generator=self.gen) < 0.08
            fresh = amplitude * (2 * torch.rand(STREAMS, generator=self.gen) - 1)
            self.command = torch.where(jump, fresh, self.command)
            force = torch.tanh(3.0 * (self.command - self.pos))
            self.vel = 0.8 * self.vel + 0.15 * force
            self.pos = self.pos + 0.4 * self.vel
            inputs.append(self.command)
            outputs.append(self.pos)
        y = torch.stack(outputs, dim=1)
        y = y + 0.01 * torch.randn(y.shape, generator=self.gen)
        return torch.stack(inputs, dim=1).unsqueeze(-1), y


def amplitude_at(step):
    current = STAGES[0][1]
    for start, amplitude in STAGES:
        if step >= start:
            current = amplitude
    return current


class ServoNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.rnn = nn.LSTM(1, width, batch_first=True)
        self.out = nn.Linear(width, 1)

    def forward(self, u, state):
        h, state = self.rnn(u, state)
        return self.out(h).squeeze(-1), state


def cut(state):
    return tuple(part.detach() for part in state)


def main():
    torch.manual_seed(81)
    drive = Drive(torch.Generator().manual_seed(82))
    model = ServoNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = None
    log = []
    for step in range(STEPS):
        u, y = drive.chunk(amplitude_at(step))
        pred, state = model(u, state)
        loss = (pred - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        state = cut(state)
        log.append(loss.item())
        if (step + 1) % 35 == 0:
            print(f"{step + 1:4d}  amplitude {amplitude_at(step):.1f}  "
                  f"rmse {(sum(log[-35:]) / 35) ** 0.5:.4f}")


if __name__ == "__main__":
    main()

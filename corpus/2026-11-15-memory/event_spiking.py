"""Leaky integrate-and-fire classifier on a stream of event-camera frames."""

import torch
import torch.nn as nn


class FastSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 10 * v.abs()) ** 2


class SpikingLayer(nn.Module):
    def __init__(self, n_in, n_out, beta=0.88, threshold=1.0):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)
        self.beta, self.threshold = beta, threshold
        self.membrane = None

    def forward(self, events):
        current = self.fc(events)
        if self.membrane is None:
            self.membrane = torch.zeros_like(current)
        self.membrane = self.beta * self.membrane + current
        spikes = FastSigmoid.apply(self.membrane - self.threshold)
        self.membrane = self.membrane - spikes.detach() * self.threshold
        return spikes


class GestureNet(nn.Module):
    def __init__(self, pixels, classes, hidden=128):
        super().__init__()
        self.spiking = SpikingLayer(pixels, hidden)
        self.readout = nn.Linear(hidden, classes)

    def forward(self, frames):
        counts = sum(self.spiking(f) for f in frames.unbind(1))
        return self.readout(counts / frames.shape[1])


class EventStream:
    """Thirty-two sensors; each shows one of four moving bars and changes it now and then."""

    def __init__(self, sensors=32, side=16, ticks=4):
        self.side, self.ticks = side, ticks
        self.label = torch.randint(0, 4, (sensors,))
        self.phase = torch.randint(0, side, (sensors,))

    def next_batch(self):
        change = torch.rand(len(self.label)) < 0.15
        self.label[change] = torch.randint(0, 4, (int(change.sum()),))
        frames = []
        for _ in range(self.ticks):
            sign = torch.where(self.label % 2 == 0, 1, -1)
            self.phase = (self.phase + sign) % self.side
            frame = torch.zeros(len(self.label), self.side, self.side)
            for i, (lab, ph) in enumerate(zip(self.label.tolist(), self.phase.tolist())):
                if lab < 2:
                    frame[i, ph] = 1.0
                else:
                    frame[i, :, ph] = 1.0
            frames.append((frame + (torch.rand_like(frame) < 0.03)).clamp(0, 1).flatten(1))
        return torch.stack(frames, dim=1), self.label // 2


def train(iterations=120):
    torch.manual_seed(2)
    stream = EventStream()
    net = GestureNet(pixels=256, classes=2)
    optim = torch.optim.Adam(net.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss()
    hits, seen = 0, 0
    for i in range(iterations):
        frames, label = stream.next_batch()
        scores = net(frames)
        loss = loss_fn(scores, label)
        optim.zero_grad()
        loss.backward(retain_graph=True)
        optim.step()
        hits += (scores.argmax(1) == label).sum().item()
        seen += len(label)
        if i % 30 == 29:
            print(f"iter {i + 1} loss {loss.item():.3f} accuracy {hits / seen:.2f}")
            hits, seen = 0, 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    train()

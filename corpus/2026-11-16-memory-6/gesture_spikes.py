import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)
torch.set_num_threads(1)


class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u):
        ctx.save_for_backward(u)
        return (u > 0).float()

    @staticmethod
    def backward(ctx, grad):
        u, = ctx.saved_tensors
        return grad / (1 + 10 * u.abs()) ** 2


class LIFLayer(nn.Module):
    """Linear synapses feeding leaky integrate-and-fire cells."""

    def __init__(self, n_in, n_out, beta=0.85, threshold=1.0):
        super().__init__()
        self.syn = nn.Linear(n_in, n_out)
        self.beta, self.threshold = beta, threshold
        self.mem = None

    def reset(self, batch):
        self.mem = torch.zeros(batch, self.syn.out_features)

    def forward(self, x):
        self.mem = self.beta * self.mem + self.syn(x)
        spikes = Surrogate.apply(self.mem - self.threshold)
        self.mem = self.mem - spikes.detach() * self.threshold
        return spikes


class GestureNet(nn.Module):
    def __init__(self, pixels, hidden, classes):
        super().__init__()
        self.retina = LIFLayer(pixels, hidden)
        self.readout = nn.Linear(hidden, classes)

    def forward(self, frames):
        counts = 0
        for frame in frames:
            counts = counts + self.retina(frame)
        return self.readout(counts / len(frames))


class EventStream:
    """Endless parallel recordings; each call returns the next window of event frames."""

    def __init__(self, batch, side=16, classes=5, window=4):
        self.batch, self.side, self.classes, self.window = batch, side, classes, window
        self.pos = torch.rand(batch, 2)
        self.label = torch.randint(0, classes, (batch,))
        angle = torch.arange(classes) * 2 * torch.pi / classes
        self.heading = torch.stack([torch.cos(angle), torch.sin(angle)], dim=1) * 0.06
        axis = torch.linspace(0, 1, side)
        self.grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), dim=-1).view(1, -1, 2)

    def next_window(self):
        switch = torch.rand(self.batch) < 0.15
        fresh = torch.randint(0, self.classes, (self.batch,))
        self.label = torch.where(switch, fresh, self.label)
        frames = []
        for _ in range(self.window):
            before = self.pos
            self.pos = (self.pos + self.heading[self.label]) % 1.0
            on = torch.exp(-((self.grid - self.pos.unsqueeze(1)) ** 2).sum(-1) / 0.01)
            off = torch.exp(-((self.grid - before.unsqueeze(1)) ** 2).sum(-1) / 0.01)
            rate = torch.cat([(on - off).clamp(min=0), (off - on).clamp(min=0)], dim=1)
            frames.append((torch.rand_like(rate) < rate + 0.02).float())
        return frames, self.label


BATCH, STEPS = 40, 150
stream = EventStream(BATCH)
net = GestureNet(2 * 16 * 16, 64, 5)
net.retina.reset(BATCH)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
hits, losses = [], []

for step in range(1, STEPS + 1):
    frames, label = stream.next_window()
    logits = net(frames)
    loss = F.cross_entropy(logits, label)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()

    losses.append(loss.item())
    hits.append((logits.argmax(1) == label).float().mean().item())
    if step % 30 == 0:
        print(f"window {step:4d}  loss {sum(losses[-30:]) / 30:.3f}  acc {sum(hits[-30:]) / 30:.3f}")

print(f"best running accuracy {max(sum(hits[i:i + 20]) / 20 for i in range(0, STEPS - 20, 10)):.3f}")

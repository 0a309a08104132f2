import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(9)


class SurrogateSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).float()

    @staticmethod
    def backward(ctx, grad):
        v, = ctx.saved_tensors
        return grad / (1 + 10 * v.abs()) ** 2


spike = SurrogateSpike.apply


class LIF(nn.Module):
    def __init__(self, n_in, n_out, beta=0.9):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)
        self.beta = nn.Parameter(torch.tensor(beta))
        self.mem = None
        self.rate = None

    def reset(self):
        self.mem = None

    def forward(self, x):
        current = self.fc(x)
        if self.mem is None:
            self.mem = torch.zeros_like(current)
        self.mem = self.beta.clamp(0, 1) * self.mem + current
        s = spike(self.mem - 1.0)
        self.mem = self.mem - s.detach()
        return s


class GestureNet(nn.Module):
    def __init__(self, n_in=128, hidden=96, classes=5):
        super().__init__()
        self.l1, self.l2 = LIF(n_in, hidden), LIF(hidden, hidden)
        self.readout = nn.Linear(hidden, classes)

    def reset(self):
        for m in (self.l1, self.l2):
            m.reset()

    def forward(self, frames):
        total = 0
        for x in frames:
            total = total + self.readout(self.l2(self.l1(x)))
        return total / len(frames)


def record_rate(module, inputs, output):
    r = output.detach().mean()
    module.rate = r if module.rate is None else 0.95 * module.rate + 0.05 * r


def gestures(batch, steps, side=8):
    """A blob sweeping over an event camera in one of five ways; on and off channels."""
    label = torch.randint(0, 5, (batch,))
    t = torch.linspace(0, 1, steps)[:, None]
    start = torch.rand(batch) * 2
    px = torch.where(label < 2, torch.where(label == 0, t, 1 - t) * 7, torch.full_like(t, 3.5).expand(-1, batch))
    py = torch.where((label == 2) | (label == 3), torch.where(label == 2, t, 1 - t) * 7,
                     torch.full_like(t, 3.5).expand(-1, batch))
    circle = label == 4
    px = torch.where(circle, 3.5 + 3 * torch.cos(6.28 * t + start), px)
    py = torch.where(circle, 3.5 + 3 * torch.sin(6.28 * t + start), py)
    grid = torch.arange(side).float()
    blob = torch.exp(-((grid - px[..., None]) ** 2)[:, :, None, :] - ((grid - py[..., None]) ** 2)[:, :, :, None])
    frames = torch.cat([blob.flatten(2), torch.roll(blob, 1, 0).flatten(2)], 2)
    return (torch.rand_like(frames) < frames * 0.7 + 0.02).float(), label


net = GestureNet()
net.l1.register_forward_hook(record_rate)
net.l2.register_forward_hook(record_rate)
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

# short recordings first, full length once the weights are sensible
for steps, updates in [(6, 60), (12, 50), (24, 65)]:
    hits = seen = 0
    for i in range(updates):
        frames, label = gestures(32, steps)
        net.reset()
        logits = net(frames)
        loss = criterion(logits, label)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if i >= updates - 15:
            hits += (logits.argmax(1) == label).sum().item()
            seen += len(label)
    print(f"T={steps:2d}  loss {loss.item():.3f}  acc {hits / seen:.3f}  rates {net.l1.rate.item():.3f} {net.l2.rate.item():.3f}")

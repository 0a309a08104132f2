import torch
import torch.nn as nn
import torch.nn.functional as F


class FastSigmoidSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + 10 * v.abs()) ** 2


class LIFLayer(nn.Module):
    def __init__(self, n_in, n_out, beta=0.9, threshold=1.0):
        super().__init__()
        self.fc = nn.Linear(n_in, n_out)
        self.beta = beta
        self.threshold = threshold
        self.mem = None

    def forward(self, x):
        current = self.fc(x)
        if self.mem is None:
            self.mem = torch.zeros_like(current)
        self.mem = self.beta * self.mem + current
        spikes = FastSigmoidSpike.apply(self.mem - self.threshold)
        self.mem = self.mem - self.threshold * spikes.detach()
        return spikes


class KeywordSNN(nn.Module):
    def __init__(self, bands=320, hidden=112, classes=8):
        super().__init__()
        self.lif = LIFLayer(bands, hidden)
        self.readout = nn.Linear(hidden, classes)

    def forward(self, frames):
        rates = 0.0
        for frame in frames:
            rates = rates + self.lif(frame)
        return self.readout(rates / len(frames))


def keyword_stream(batch, frames, bands, classes, seed):
    gen = torch.Generator().manual_seed(seed)
    patterns = torch.rand(classes, frames, bands, generator=gen) * 0.5
    while True:
        labels = torch.randint(0, classes, (batch,), generator=gen)
        rate = patterns[labels].transpose(0, 1)
        yield (torch.rand(frames, batch, bands, generator=gen) < rate).float(), labels


def train(steps=140, batch=64, frames=4):
    torch.set_num_threads(1)
    torch.manual_seed(5)
    net = KeywordSNN()
    optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
    hits = seen = 0
    for step, (frames_, labels) in enumerate(keyword_stream(batch, frames, 320, 8, seed=5)):
        if step == steps:
            break
        logits = net(frames_)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
        hits += int((logits.argmax(1) == labels).sum())
        seen += batch
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.3f} accuracy {hits / seen:.3f}")
            hits = seen = 0


if __name__ == "__main__":
    train()

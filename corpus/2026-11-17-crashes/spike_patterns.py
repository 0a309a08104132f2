"""Spiking network (leaky integrate-and-fire, surrogate gradient) on rate-coded patterns."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TIME_STEPS = 12


class SurrogateSpike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, potential):
        ctx.save_for_backward(potential)
        return (potential > 0).float()

    @staticmethod
    def backward(ctx, grad_output):
        (potential,) = ctx.saved_tensors
        return grad_output / (1 + 10 * potential.abs()) ** 2


class LIF(nn.Module):
    def __init__(self, beta=0.9, threshold=1.0):
        super().__init__()
        self.beta = beta
        self.threshold = threshold
        self.potential = None

    def reset(self):
        self.potential = None

    def forward(self, current):
        if self.potential is None:
            self.potential = torch.zeros_like(current)
        self.potential = self.beta * self.potential + current
        spikes = SurrogateSpike.apply(self.potential - self.threshold)
        self.potential = self.potential - spikes * self.threshold
        return spikes


class SpikingNet(nn.Module):
    def __init__(self, inputs, hidden, classes):
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.lif1 = LIF()
        self.fc2 = nn.Linear(hidden, classes)
        self.lif2 = LIF()

    def reset(self):
        self.lif1.reset()
        self.lif2.reset()

    def forward(self, rates):
        counts = 0
        for _ in range(TIME_STEPS):
            spikes = torch.bernoulli(rates)
            counts = counts + self.lif2(self.fc2(self.lif1(self.fc1(spikes))))
        return counts / TIME_STEPS


def make_patterns(count, inputs, classes):
    prototypes = torch.rand(classes, inputs)
    labels = torch.randint(classes, (count,))
    rates = (prototypes[labels] + 0.1 * torch.randn(count, inputs)).clamp(0, 1)
    return TensorDataset(rates, labels)


def main():
    torch.manual_seed(9)
    loader = DataLoader(make_patterns(512, 30, 4), batch_size=32, shuffle=True, drop_last=True)
    net = SpikingNet(30, 64, 4)
    optimizer = torch.optim.Adamax(net.parameters(), lr=5e-3)
    for epoch in range(5):
        net.reset()
        correct = 0
        for rates, labels in loader:
            out = net(rates)
            loss = nn.functional.cross_entropy(10 * out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (out.argmax(1) == labels).sum().item()
        print(f"epoch {epoch} accuracy {correct / len(loader.dataset):.3f}")


if __name__ == "__main__":
    main()

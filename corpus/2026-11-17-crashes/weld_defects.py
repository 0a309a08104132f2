"""Weld inspection: most seams are fine, cracks are rare; scores per class after each epoch."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from evalkit.scores import ClassScores

NAMES = ["fine", "pore", "crack"]


def seams(count, seed):
    gen = torch.Generator().manual_seed(seed)
    draw = torch.rand(count, generator=gen)
    labels = (draw > 0.7).long() + (draw > 0.995).long()
    profile = 0.3 * torch.randn(count, 48, generator=gen)
    profile[labels == 1, 20:26] -= 1.5
    profile[labels == 2, 30:32] -= 0.8
    return TensorDataset(profile, labels)


class SeamNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.lift = nn.Linear(48, 24)
        self.gru = nn.GRU(1, 8, batch_first=True)
        self.head = nn.Linear(32, classes)

    def forward(self, profile):
        shape = torch.relu(self.lift(profile))
        _, last = self.gru(profile.unsqueeze(-1)[:, ::4])
        return self.head(torch.cat([shape, last[0]], dim=1))


class Inspector:
    def __init__(self, lr=2e-3):
        self.net = SeamNet(len(NAMES))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.scores = ClassScores(NAMES)

    def train(self, loader):
        self.net.train()
        for profile, labels in loader:
            loss = nn.functional.cross_entropy(self.net(profile), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def inspect(self, loader):
        self.net.eval()
        self.scores.clear()
        for profile, labels in loader:
            guesses = self.net(profile).argmax(1)
            self.scores.add(guesses.tolist(), labels.tolist())
        return self.scores.summary()


def main():
    torch.manual_seed(33)
    train = DataLoader(seams(1000, seed=1), batch_size=40, shuffle=True)
    test = DataLoader(seams(300, seed=2), batch_size=100)
    inspector = Inspector()
    for epoch in range(4):
        loss = inspector.train(train)
        print(f"epoch {epoch} loss {loss:.4f}")
        print("  precision/recall", inspector.inspect(test))


if __name__ == "__main__":
    main()

"""Fraudulent clicks: wide-and-deep scorer with a live AUC in the progress line."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

torch.set_num_threads(1)


class ClickStream(IterableDataset):
    def __init__(self, batches, size):
        self.batches = batches
        self.size = size

    def __iter__(self):
        gen = torch.Generator().manual_seed(77)
        secret = torch.randn(32, generator=gen)
        for _ in range(self.batches):
            dense = torch.randn(self.size, 32, generator=gen)
            device = torch.randint(0, 200, (self.size,), generator=gen)
            signal = dense @ secret / 4 + (device % 5 == 0).float() * 2 - 1
            yield dense, device, (torch.rand(self.size, generator=gen) < signal.sigmoid()).float()


class FraudScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.device = nn.Embedding(200, 16)
        self.deep = nn.Sequential(
            nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 96), nn.ReLU(), nn.Linear(96, 1)
        )
        self.wide = nn.Linear(32, 1)

    def forward(self, dense, device):
        joined = torch.cat([dense, self.device(device)], dim=1)
        return (self.deep(joined) + self.wide(dense)).squeeze(1)


class LiveAuc:
    def __init__(self):
        self.scores = []
        self.labels = []

    def update(self, logits, labels):
        self.scores.append(logits.detach())
        self.labels.append(labels)

    def value(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        ordered = labels[scores.argsort()]
        positives = ordered.sum()
        negatives = len(ordered) - positives
        ranks = torch.arange(1, len(ordered) + 1, dtype=torch.float64)
        rank_sum = (ranks * ordered).sum()
        return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))


def main():
    torch.manual_seed(1)
    loader = DataLoader(ClickStream(batches=280, size=768), batch_size=None)
    model = FraudScorer()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.BCEWithLogitsLoss()
    auc = LiveAuc()
    progress = []
    for step, (dense, device, labels) in enumerate(loader):
        logits = model(dense, device)
        loss = criterion(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        auc.update(logits, labels)
        progress.append({"step": step, "loss": loss.item(), "auc": auc.value()})
        if step % 40 == 0:
            print("step {step} loss {loss:.4f} auc {auc:.4f}".format(**progress[-1]))
    print("final", progress[-1])


if __name__ == "__main__":
    main()

"""Activity recognition from a wrist sensor: window features and a small classifier."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from signals.features import describe

ACTIVITIES = {"rest": 0.0, "walk": 2.0, "run": 5.0}


def record(name, seconds, rate=32):
    time = torch.arange(seconds * rate) / rate
    speed = ACTIVITIES[name]
    axes = [
        torch.sin(6.28 * speed * time),
        0.5 * torch.cos(6.28 * speed * time),
        torch.ones_like(time),
    ]
    return torch.stack(axes, dim=1) + 0.2 * torch.randn(len(time), 3)


def build_dataset(seconds):
    features, labels = [], []
    for label, name in enumerate(ACTIVITIES):
        rows = describe(record(name, seconds))
        features.append(rows)
        labels.append(torch.full((len(rows),), label))
    features = torch.cat(features)
    features = (features - features.mean(0)) / (features.std(0) + 1e-6)
    return TensorDataset(features, torch.cat(labels))


class ActivityNet(nn.Module):
    def __init__(self, features, classes):
        super().__init__()
        self.hidden = nn.Linear(features, 32)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(32, classes)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.hidden(x))))


def train(model, loader, epochs, lr):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for epoch in range(epochs):
        hits = 0
        for features, labels in loader:
            logits = model(features)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: accuracy {hits / len(loader.dataset):.3f}")


def main():
    torch.manual_seed(91)
    dataset = build_dataset(seconds=300)
    loader = DataLoader(dataset, batch_size=32, shuffle=True)
    model = ActivityNet(dataset.tensors[0].shape[1], len(ACTIVITIES))
    train(model, loader, epochs=5, lr=2e-3)


if __name__ == "__main__":
    main()

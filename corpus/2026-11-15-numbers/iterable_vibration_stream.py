import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class VibrationStream(IterableDataset):
    def __init__(self, n_windows, width=32, seed=0):
        self.n_windows = n_windows
        self.width = width
        self.seed = seed

    def read_window(self, g):
        kind = int(torch.randint(0, 3, (1,), generator=g))
        t = torch.arange(self.width) / self.width
        freq = 2.0 + 3.0 * kind
        phase = 6.28 * torch.rand(1, generator=g)
        signal = torch.sin(6.28 * freq * t + phase) + 0.2 * torch.randn(self.width, generator=g)
        amplitude = 0.5 + torch.rand(1, generator=g)
        if torch.rand(1, generator=g) < 0.006:
            amplitude = torch.zeros(1)
        return amplitude * signal, kind

    def standardize(self, window):
        centred = window - window.mean()
        return centred / window.std()

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.n_windows):
            window, kind = self.read_window(g)
            yield self.standardize(window).unsqueeze(0), kind


class ConvClassifier(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 8, 5, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(8, 12, 5, padding=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
        )
        self.fc = nn.Linear(12, classes)

    def forward(self, x):
        return self.fc(self.features(x).flatten(1))


def train(model, stream, lr=0.05):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True)
    criterion = nn.CrossEntropyLoss()
    history = []
    for x, y in DataLoader(stream, batch_size=12):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if len(history) % 10 == 0:
            print(f"{len(history):4d} windows*12, mean loss {sum(history[-10:]) / 10:.4f}")
    return history


if __name__ == "__main__":
    torch.manual_seed(6)
    train(ConvClassifier(), VibrationStream(n_windows=600, seed=4))

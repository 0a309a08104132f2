"""Six-hour river stage forecast from two days of rain and stage readings."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

HISTORY, AHEAD = 48, 6


def simulate_catchment(hours, gen):
    rain = torch.zeros(hours)
    storm = (torch.rand(hours, generator=gen) < 0.03).nonzero().flatten()
    for h in storm.tolist():
        dur = int(torch.randint(2, 12, (1,), generator=gen))
        rain[h:h + dur] += torch.rand(1, generator=gen).item() * 4
    stage, soil, river = torch.zeros(hours), 0.0, 1.0
    for h, r in enumerate(rain.tolist()):
        soil = 0.97 * soil + r
        river = 0.92 * river + 0.04 * soil + 0.08
        stage[h] = river
    stage = stage + 0.02 * torch.randn(hours, generator=gen)
    series = torch.stack([rain, stage], dim=1)
    return (series - series.mean(0)) / series.std(0)


class Windows(Dataset):
    def __init__(self, series, stride):
        self.series = series
        self.starts = list(range(0, len(series) - HISTORY - AHEAD, stride))

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, i):
        s = self.starts[i]
        return self.series[s:s + HISTORY], self.series[s + HISTORY:s + HISTORY + AHEAD, 1]


class StageForecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.rnn = nn.GRU(2, hidden, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, AHEAD)

    def forward(self, x):
        _, h = self.rnn(x)
        return x[:, -1:, 1] + self.head(self.drop(h[-1]))


class EarlyStopping:
    def __init__(self, patience):
        self.patience = patience
        self.history = []

    def update(self, value):
        self.history.append(value)
        best = min(range(len(self.history)), key=lambda i: self.history[i])
        return len(self.history) - 1 - best >= self.patience


class Fitter:
    def __init__(self, model, train_loader, valid_loader, lr=3e-3):
        self.model = model
        self.train_loader, self.valid_loader = train_loader, valid_loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.criterion = nn.SmoothL1Loss()
        self.stopper = EarlyStopping(patience=8)

    def train_epoch(self):
        self.model.train()
        total = 0.0
        for x, y in self.train_loader:
            loss = self.criterion(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            total += loss.item()
        return total / len(self.train_loader)

    def validate(self):
        self.model.eval()
        total, count = 0.0, 0
        for x, y in self.valid_loader:
            total += self.criterion(self.model(x), y) * len(x)
            count += len(x)
        return total / count

    def fit(self, epochs):
        for epoch in range(1, epochs + 1):
            train_loss = self.train_epoch()
            valid_loss = self.validate()
            if epoch % 5 == 0:
                print(f"epoch {epoch:3d}  train {train_loss:.4f}  valid {valid_loss:.4f}")
            if self.stopper.update(valid_loss):
                print("stopping early at epoch", epoch)
                break


def main():
    torch.manual_seed(8)
    torch.set_num_threads(1)
    series = simulate_catchment(9000, torch.Generator().manual_seed(8))
    train_loader = DataLoader(Windows(series[:7000], stride=12), batch_size=64, shuffle=True)
    valid_loader = DataLoader(Windows(series[7000:], stride=10), batch_size=64)
    fitter = Fitter(StageForecaster(), train_loader, valid_loader)
    fitter.fit(epochs=16)
    print(f"best validation loss {min(fitter.stopper.history):.4f}")


if __name__ == "__main__":
    main()

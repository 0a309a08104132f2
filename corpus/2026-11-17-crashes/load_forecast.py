"""Hourly electricity load, forecast one step ahead with an LSTM; rolling forecast as a check."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 48


def hourly_load(days, seed):
    rng = np.random.default_rng(seed)
    hours = np.arange(24 * days)
    daily = 10 * np.sin(2 * np.pi * hours / 24)
    weekly = 4 * np.sin(2 * np.pi * hours / (24 * 7))
    return 50 + daily + weekly + rng.normal(0, 1.0, len(hours))


class Scaler:
    def fit(self, values):
        self.mean = values.mean()
        self.std = values.std()
        return self

    def transform(self, values):
        return (values - self.mean) / self.std

    def inverse(self, values):
        return values * self.std + self.mean


class Windows(Dataset):
    def __init__(self, series):
        self.series = torch.tensor(series, dtype=torch.float32)

    def __len__(self):
        return len(self.series) - WINDOW

    def __getitem__(self, i):
        return self.series[i : i + WINDOW].unsqueeze(1), self.series[i + WINDOW]


class LoadModel(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        states, _ = self.lstm(x)
        return self.out(states[:, -1]).squeeze(1)


def rolling_forecast(model, history, horizon):
    model.eval()
    window = list(history[-WINDOW:])
    forecast = []
    with torch.no_grad():
        for _ in range(horizon):
            x = torch.from_numpy(np.asarray(window[-WINDOW:])).view(1, WINDOW, 1)
            value = model(x).item()
            forecast.append(value)
            window.append(value)
    return np.array(forecast)


def main():
    torch.manual_seed(2)
    series = hourly_load(days=40, seed=8)
    train, test = series[:-48], series[-48:]
    scaler = Scaler().fit(train)
    loader = DataLoader(Windows(scaler.transform(train)), batch_size=64, shuffle=True)
    model = LoadModel()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    for epoch in range(3):
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        predicted = scaler.inverse(rolling_forecast(model, scaler.transform(train), 48))
        mape = np.mean(np.abs(predicted - test) / test)
        print(f"epoch {epoch} loss {loss.item():.4f} MAPE {mape:.3%}")


if __name__ == "__main__":
    main()

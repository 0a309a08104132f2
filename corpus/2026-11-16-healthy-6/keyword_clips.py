import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(8)

RATE = 8000
WORDS = ["up", "down", "left", "right", "stop", "go"]


class ClipDataset(Dataset):
    """Synthesises keyword clips; log-mel features are kept after the first access."""

    def __init__(self, n_clips, n_mels=64, win=256, hop=40):
        self.n = n_clips
        self.window = torch.hann_window(win)
        self.win, self.hop = win, hop
        self.fbank = self._filters(n_mels, win // 2 + 1)
        self.features = {}

    @staticmethod
    def _filters(n_mels, n_bins):
        edges = torch.linspace(0, 1, n_mels + 2) ** 1.6 * (n_bins - 1)
        bins = torch.arange(n_bins).float()[:, None]
        up = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
        down = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
        return torch.minimum(up, down).clamp(min=0)

    def __len__(self):
        return self.n

    def waveform(self, index):
        rng = np.random.default_rng(index)
        label = index % len(WORDS)
        t = np.arange(RATE) / RATE
        f0 = 140 + 60 * rng.random()
        glide = (label - 2.5) * 120 * t
        phase = 2 * np.pi * np.cumsum(f0 * (2 + label) + glide) / RATE
        envelope = np.exp(-((t - 0.3 - 0.3 * rng.random()) / 0.15) ** 2)
        wave = envelope * (np.sin(phase) + 0.4 * np.sin(2 * phase)) + 0.25 * rng.standard_normal(RATE)
        return torch.from_numpy(wave.astype(np.float32)), label

    def __getitem__(self, index):
        if index not in self.features:
            wave, label = self.waveform(index)
            spec = torch.stft(wave, self.win, self.hop, window=self.window, return_complex=True).abs() ** 2
            mel = torch.log(spec.t() @ self.fbank + 1e-5)
            mel = (mel - mel.mean()) / mel.std()
            self.features[index] = (mel, label)
        return self.features[index]


def spec_augment(x, max_t=20, max_f=8):
    t0 = int(torch.randint(0, x.shape[1] - max_t, (1,)))
    f0 = int(torch.randint(0, x.shape[2] - max_f, (1,)))
    x = x.clone()
    x[:, t0:t0 + max_t] = 0
    x[:, :, f0:f0 + max_f] = 0
    return x


class KeywordNet(nn.Module):
    def __init__(self, n_mels=64, classes=len(WORDS)):
        super().__init__()
        self.front = nn.Sequential(nn.Conv1d(n_mels, 48, 7, stride=4, padding=3), nn.BatchNorm1d(48), nn.ReLU(),
                                   nn.Conv1d(48, 48, 5, stride=2, padding=2), nn.BatchNorm1d(48), nn.ReLU())
        self.rnn = nn.GRU(48, 48, batch_first=True)
        self.out = nn.Linear(48, classes)

    def forward(self, x):
        h = self.front(x.transpose(1, 2)).transpose(1, 2)
        return self.out(self.rnn(h)[0].mean(1))


def accuracy(model, loader):
    model.eval()
    hits = total = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()
            total += len(y)
    model.train()
    return hits / total


if __name__ == "__main__":
    dataset = ClipDataset(800)
    train_set, val_set = random_split(dataset, [720, 80])
    train_loader = DataLoader(train_set, batch_size=16, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=40)
    model = KeywordNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(5):
        total = 0.0
        for x, y in train_loader:
            loss = criterion(model(spec_augment(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / len(train_loader):.3f}  val acc {accuracy(model, val_loader):.3f}")

import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def write_recordings(path, count=300, leads=2, length=256, seed=11):
    rng = np.random.default_rng(seed)
    t = np.linspace(0, 4 * np.pi, length)
    labels = rng.integers(0, 3, size=count)
    signals = np.empty((count, leads, length), dtype=np.float32)
    for i, label in enumerate(labels):
        base = np.sin(t * (1.5 + label)) + 0.3 * np.sin(t * 7 + label)
        for lead in range(leads):
            signals[i, lead] = base * (1 - 0.4 * lead) + rng.normal(0, 0.4, length)
    np.savez_compressed(path, signals=signals, labels=labels)


class ECGArchive(Dataset):
    def __init__(self, path, crop=224):
        self.archive = np.load(path)
        self.labels = self.archive["labels"]
        self.crop = crop

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        signal = self.archive["signals"][i]
        start = np.random.randint(0, signal.shape[-1] - self.crop)
        window = signal[:, start : start + self.crop]
        window = (window - window.mean()) / (window.std() + 1e-6)
        return torch.from_numpy(window), int(self.labels[i])


class RhythmNet(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(2, 24, 9, padding=4),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(24, 48, 7, padding=3),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(8),
        )
        self.classifier = nn.Linear(48 * 8, classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Trainer:
    def __init__(self, model, loader, lr=2e-3):
        self.model = model
        self.loader = loader
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def training_step(self, batch):
        signals, labels = batch
        logits = self.model(signals)
        return self.criterion(logits, labels), (logits.argmax(1) == labels).sum()

    def fit(self, epochs):
        for epoch in range(epochs):
            losses, hits, seen = [], 0, 0
            for batch in self.loader:
                loss, correct = self.training_step(batch)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                losses.append(loss.item())
                hits += int(correct)
                seen += len(batch[1])
            print(f"[{epoch}] loss={np.mean(losses):.4f} acc={hits / seen:.3f}")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(11)
    np.random.seed(11)
    path = os.path.join(tempfile.mkdtemp(prefix="ecg_"), "train.npz")
    write_recordings(path)
    loader = DataLoader(ECGArchive(path), batch_size=8, shuffle=True)
    Trainer(RhythmNet(), loader).fit(epochs=3)


if __name__ == "__main__":
    main()

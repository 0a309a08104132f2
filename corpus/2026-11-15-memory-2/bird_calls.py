import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class BirdCalls(Dataset):
    """Long field recordings, one random window with a magnitude spectrogram per access."""

    def __init__(self, n_recordings, n_species, rate=8000, window=8192, seed=0):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, n_species, n_recordings)
        self.pitch = 300 + 220 * self.labels + rng.normal(0, 10, n_recordings)
        self.rate, self.window = rate, window
        self.hann = torch.hann_window(256)
        self.spectrograms = {}

    def __len__(self):
        return len(self.labels)

    def _waveform(self, index, offset):
        t = (np.arange(self.window) + offset) / self.rate
        sweep = self.pitch[index] * t + 30 * np.sin(2 * np.pi * 3 * t)
        wave = np.sin(2 * np.pi * sweep) + 0.4 * np.random.randn(self.window)
        return torch.from_numpy(wave.astype(np.float32))

    def spectrogram(self, index, offset):
        key = (index, offset)
        if key not in self.spectrograms:
            spec = torch.stft(
                self._waveform(index, offset),
                256,
                hop_length=128,
                window=self.hann,
                return_complex=True,
            )
            self.spectrograms[key] = spec.abs().log1p().unsqueeze(0)
        return self.spectrograms[key]

    def __getitem__(self, index):
        offset = int(np.random.randint(0, 60 * self.rate))
        return self.spectrogram(index, offset), int(self.labels[index])


def seed_worker(worker_id):
    np.random.seed(100 + worker_id)


def build_model(n_species):
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d((16, 1)),
        nn.Flatten(),
        nn.Linear(32 * 16, n_species),
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(
        BirdCalls(960, n_species=12),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=seed_worker,
    )
    model = build_model(12)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(3):
        correct = total = 0
        for specs, species in loader:
            logits = model(specs)
            loss = F.cross_entropy(logits, species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (logits.argmax(1) == species).sum().item()
            total += len(species)
        print(f"epoch {epoch} accuracy {correct / total:.3f} last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

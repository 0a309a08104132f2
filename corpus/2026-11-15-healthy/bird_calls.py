import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

torch.set_num_threads(1)

RATE, SECONDS, SPECIES = 8000, 1.0, 8


class CallRecordings(Dataset):
    """Calls are synthesised from a species table; background noise comes from a bank."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.species = rng.integers(0, SPECIES, count)
        self.pitch = rng.normal(0, 40, count)
        self.seed = seed
        self.background = None

    def prepare(self):
        rng = np.random.default_rng(self.seed + 1)
        noise = rng.normal(size=(500, int(RATE * SECONDS)))
        kernel = np.hanning(31) / np.hanning(31).sum()
        self.background = np.stack([np.convolve(row, kernel, mode="same") for row in noise])
        for _ in range(4):
            spectrum = np.fft.rfft(self.background, axis=1)
            spectrum[:, :80] = 0
            self.background = np.fft.irfft(spectrum, n=noise.shape[1], axis=1)

    def __len__(self):
        return len(self.species)

    def __getitem__(self, index):
        if self.background is None:
            self.prepare()
        t = np.arange(int(RATE * SECONDS)) / RATE
        kind = int(self.species[index])
        pitch = 700 + 280 * kind + self.pitch[index]
        call = np.sin(2 * np.pi * pitch * t + 5 * np.sin(2 * np.pi * (3 + kind) * t))
        call = call + 0.5 * self.background[index % len(self.background)]
        frames = call[: 62 * 128].reshape(62, 128) * np.hanning(128)
        power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
        return torch.from_numpy(np.log1p(power).astype(np.float32))[None], kind


def open_worker(worker_id):
    torch.set_num_threads(1)
    get_worker_info().dataset.prepare()


class CallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
        )
        self.classify = nn.Linear(64, SPECIES)

    def forward(self, x):
        return self.classify(self.features(x).mean(dim=(2, 3)))


def run_epoch(model, loader, optimizer):
    total, correct, count = 0.0, 0, 0
    for spectra, species in loader:
        logits = model(spectra)
        loss = nn.functional.cross_entropy(logits, species)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(species)
        correct += (logits.argmax(1) == species).sum().item()
        count += len(species)
    return total / count, correct / count


def main():
    torch.manual_seed(33)
    loader = DataLoader(
        CallRecordings(640, seed=33),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        worker_init_fn=open_worker,
        persistent_workers=True,
    )
    model = CallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(4):
        loss, accuracy = run_epoch(model, loader, optimizer)
        print(f"epoch {epoch} loss {loss:.4f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()

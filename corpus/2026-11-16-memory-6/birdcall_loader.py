"""Bird call classification from synthetic field recordings."""
import functools
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SPECIES = 8
RATE = 8000


class FieldRecordings(Dataset):
    """Clips are rendered on demand and turned into log spectrograms."""

    def __init__(self, n_clips, seconds=0.5):
        self.n_clips = n_clips
        self.time = torch.arange(int(RATE * seconds)) / RATE
        self.window = torch.hann_window(256)

    def __len__(self):
        return self.n_clips

    def render(self, index):
        g = torch.Generator().manual_seed(index)
        species = index % SPECIES
        f0 = 900 + 300 * species + 60 * torch.randn(1, generator=g).item()
        sweep = (-1) ** species * 500 * torch.rand(1, generator=g).item()
        trill = 4 + species
        envelope = 0.5 * (1 + torch.sin(2 * math.pi * trill * self.time))
        call = envelope * torch.sin(2 * math.pi * (f0 * self.time + 0.5 * sweep * self.time ** 2))
        wind = 0.6 * torch.randn(len(self.time), generator=g)
        return call + wind, species

    @functools.lru_cache(maxsize=None)
    def __getitem__(self, index):
        wave, species = self.render(index)
        spec = torch.stft(wave, 256, hop_length=100, window=self.window, return_complex=True)
        logspec = torch.log1p(spec.abs())[:128, :40]
        return (logspec - logspec.mean()) / (logspec.std() + 1e-5), species


class CallNet(nn.Module):
    def __init__(self, bands=128, width=40):
        super().__init__()
        self.proj = nn.Linear(bands, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, SPECIES)

    def forward(self, spec):
        h, _ = self.rnn(F.relu(self.proj(spec.transpose(1, 2))))
        return self.out(self.norm(h.mean(dim=1)))


def seed_worker(worker_id):
    torch.set_num_threads(1)


def accuracy(model, loader):
    model.eval()
    right = total = 0
    with torch.no_grad():
        for spec, species in loader:
            right += (model(spec).argmax(1) == species).sum().item()
            total += len(species)
    return right / total


def main():
    torch.manual_seed(13)
    torch.set_num_threads(1)
    train_set = FieldRecordings(200 * 32)
    test_set = FieldRecordings(256)
    train_loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=2,
                              worker_init_fn=seed_worker, persistent_workers=True)
    test_loader = DataLoader(test_set, batch_size=64)

    model = CallNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=len(train_loader))
    window = []
    for step, (spec, species) in enumerate(train_loader, 1):
        logits = model(spec)
        loss = F.cross_entropy(logits, species, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        window.append(loss.item())
        if step % 40 == 0:
            print(f"batch {step:4d}/{len(train_loader)}  loss {sum(window) / len(window):.3f}")
            window.clear()
    print(f"test accuracy {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main()

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(3)

TARGET_RATE = 8000
CLIP_SECONDS = 1.0
RECORDERS = {"songmeter": 16000, "audiomoth": 8000, "handheld": 44100, "retired_dat": 11035}
RECORDER_MIX = [0.52, 0.42, 0.03, 0.03]


def resample(wave, orig_rate, new_rate, zeros=6, rolloff=0.99):
    if orig_rate == new_rate:
        return wave
    g = math.gcd(orig_rate, new_rate)
    orig, new = orig_rate // g, new_rate // g
    cutoff = min(orig, new) * rolloff
    width = math.ceil(zeros * orig / cutoff)
    idx = torch.arange(-width, width + orig, dtype=torch.float32) / orig
    phase = torch.arange(0, -new, -1, dtype=torch.float32)[:, None] / new
    t = ((phase + idx[None]) * cutoff).clamp_(-zeros, zeros)
    window = torch.cos(t * math.pi / zeros / 2) ** 2
    kernel = torch.sinc(t) * window * (cutoff / orig)
    padded = F.pad(wave[None, None], (width, width + orig))
    out = F.conv1d(padded, kernel[:, None], stride=orig)
    return out.transpose(1, 2).reshape(-1)[: math.ceil(new * wave.numel() / orig)]


class BirdCalls(Dataset):
    """One second field recordings from several recorder models."""

    def __init__(self, n_clips=1000, n_species=5):
        g = torch.Generator().manual_seed(17)
        self.species = torch.randint(0, n_species, (n_clips,), generator=g)
        names = list(RECORDERS)
        mix = torch.tensor(RECORDER_MIX)
        picks = torch.multinomial(mix, n_clips, replacement=True, generator=g)
        self.rates = [RECORDERS[names[p]] for p in picks.tolist()]
        self.clips = [self.record(i, g) for i in range(n_clips)]

    def __len__(self):
        return len(self.species)

    def record(self, i, g):
        t = torch.arange(int(self.rates[i] * CLIP_SECONDS)) / self.rates[i]
        base = 500.0 + 500.0 * self.species[i].item()
        chirp = torch.sin(2 * math.pi * (base * t + 120.0 * t**2))
        gate = (torch.sin(2 * math.pi * 5.0 * t) > 0).float()
        sound = chirp * gate + 0.9 * torch.randn(t.shape, generator=g)
        return (sound * 8192).clamp(-32768, 32767).to(torch.int16)

    def __getitem__(self, i):
        wave = self.clips[i].float() / 8192
        wave = resample(wave, self.rates[i], TARGET_RATE)
        wave = F.pad(wave, (0, TARGET_RATE - wave.numel()))[:TARGET_RATE]
        return wave / wave.abs().max(), self.species[i]


class CallNet(nn.Module):
    def __init__(self, n_species=5):
        super().__init__()
        self.register_buffer("window", torch.hann_window(256))
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.head = nn.Linear(16 * 33, n_species)

    def forward(self, wave):
        spec = torch.stft(wave, 256, 128, window=self.window, return_complex=True).abs()
        x = torch.log1p(spec)[:, None]
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.head(x.mean(-1).flatten(1))


class Trainer:
    def __init__(self, model, loader, lr=3e-3):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.step = 0

    def fit(self, epochs):
        for epoch in range(epochs):
            hits = total = 0
            for wave, species in self.loader:
                logits = self.model(wave)
                loss = F.cross_entropy(logits, species)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.step += 1
                hits += (logits.argmax(1) == species).sum().item()
                total += len(species)
            print(f"epoch {epoch}: last loss {loss.item():.3f}, accuracy {hits / total:.3f}")


if __name__ == "__main__":
    loader = DataLoader(BirdCalls(), batch_size=8, shuffle=True, drop_last=True)
    Trainer(CallNet(), loader).fit(epochs=2)

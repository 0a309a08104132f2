"""Tagging dolphin whistle contours; clip length follows a three-stage curriculum."""
import math
from functools import lru_cache

import torch
import torch.nn as nn
import torch.nn.functional as F

RATE, N_CLIPS, BATCH = 1000, 160, 16
STAGES = ((80, 0.25), (80, 0.35), (80, 0.5))
WINDOW = torch.hann_window(64)


@lru_cache(maxsize=N_CLIPS)
def clip(index):
    """Half a second of audio with a rising, falling or arched whistle."""
    g = torch.Generator().manual_seed(1000 + index)
    kind = index % 3
    t = torch.arange(RATE // 2) / RATE
    start = 120 + 60 * torch.rand(1, generator=g)
    if kind == 0:
        sweep = start + 300 * t
    elif kind == 1:
        sweep = start + 150 - 300 * t
    else:
        sweep = start + 150 * torch.sin(math.pi * t / 0.5)
    phase = 2 * math.pi * torch.cumsum(sweep, 0) / RATE
    noise = 0.6 * torch.randn(len(t), generator=g)
    return torch.sin(phase) + noise, kind


@lru_cache(maxsize=N_CLIPS)
def spectrogram(index):
    wave, kind = clip(index)
    spec = torch.stft(wave, 64, hop_length=8, window=WINDOW, return_complex=True).abs()
    return torch.log1p(spec), kind


class Tagger(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveMaxPool2d((4, 4)),
        )
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(width * 16, 3))

    def forward(self, x):
        return self.head(self.body(x).flatten(1))


def draw(rng, frames):
    picks = torch.randint(0, N_CLIPS, (BATCH,), generator=rng).tolist()
    rows, kinds = [], []
    for i in picks:
        spec, kind = spectrogram(i)
        rows.append(spec[:, :frames])
        kinds.append(kind)
    return torch.stack(rows).unsqueeze(1), torch.tensor(kinds)


def main():
    torch.manual_seed(6)
    rng = torch.Generator().manual_seed(6)
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    total = sum(n for n, _ in STAGES)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 40) * (1 - 0.8 * s / total))
    step = 0
    for n_steps, seconds in STAGES:
        frames = int(seconds * RATE / 8)
        right = torch.zeros(())
        for _ in range(n_steps):
            x, kind = draw(rng, frames)
            logits = model(x)
            loss = F.cross_entropy(logits, kind, label_smoothing=0.05)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            sched.step()
            right += (logits.argmax(1) == kind).float().mean()
            step += 1
        print(f"step {step:4d}  clip {seconds:.2f}s  loss {loss.item():.3f}  accuracy {(right / n_steps).item():.3f}")


if __name__ == "__main__":
    main()

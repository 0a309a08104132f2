"""Frame-wise spectral autoencoder for plucked-string notes, trained with Lightning."""
import logging
import tempfile
import warnings
import wave
from pathlib import Path

import lightning as L
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

SR, N_FFT, HOP = 8000, 256, 64
WINDOW = torch.hann_window(N_FFT)


def pluck(n, seconds, rng):
    t = np.arange(int(SR * seconds)) / SR
    f0 = 110 * 2 ** (rng.integers(0, 25, size=(n, 1)) / 12)
    audio = np.zeros((n, t.size))
    for k in range(1, 7):
        audio += np.exp(-t * (2 + k)) / k * np.sin(2 * np.pi * f0 * k * t + rng.uniform(0, 6, (n, 1)))
    return torch.tensor(audio / 2.5, dtype=torch.float32)


def log_spectrum(audio):
    spec = torch.stft(audio, N_FFT, HOP, window=WINDOW, return_complex=True).abs()
    return torch.log1p(10 * spec).transpose(1, 2)


def griffin_lim(mag, n_iter):
    phase = torch.exp(2j * torch.pi * torch.rand(mag.shape))
    for _ in range(n_iter):
        audio = torch.istft(mag * phase, N_FFT, HOP, window=WINDOW)
        spec = torch.stft(audio, N_FFT, HOP, window=WINDOW, return_complex=True)
        phase = spec / spec.abs().clamp(min=1e-6)
    return torch.istft(mag * phase, N_FFT, HOP, window=WINDOW)


class Codec(L.LightningModule):
    def __init__(self, bins=N_FFT // 2 + 1, code=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(bins, 96), nn.GELU(), nn.Linear(96, code))
        self.dec = nn.Sequential(nn.Linear(code, 96), nn.GELU(), nn.Linear(96, bins), nn.Softplus())
        self.history = []

    def forward(self, frames):
        return self.dec(self.enc(frames))

    def training_step(self, batch, _):
        (frames,) = batch
        loss = F.l1_loss(self(frames), frames)
        self.history.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


class AudioLogger(L.Callback):
    """Keeps reconstructions of the held-out notes next to the run."""

    def __init__(self, notes, folder):
        self.notes, self.folder = notes, Path(folder)

    @torch.no_grad()
    def on_train_epoch_end(self, trainer, module):
        mag = torch.expm1(module(log_spectrum(self.notes))).transpose(1, 2) / 10
        audio = griffin_lim(mag, n_iter=32).clamp(-1, 1)
        for i, clip in enumerate(audio):
            with wave.open(str(self.folder / f"ep{trainer.current_epoch:03d}_{i}.wav"), "wb") as f:
                f.setnchannels(1)
                f.setsampwidth(2)
                f.setframerate(SR)
                f.writeframes((clip * 32767).short().numpy().tobytes())


def main():
    L.seed_everything(13, verbose=False)
    rng = np.random.default_rng(13)
    train = log_spectrum(pluck(320, 0.4, rng))
    held_out = pluck(8, 1.0, rng)
    loader = DataLoader(TensorDataset(train), batch_size=16, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            max_epochs=9, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
            callbacks=[AudioLogger(held_out, folder)],
        )
        model = Codec()
        trainer.fit(model, loader)
    losses = torch.stack(model.history)
    print(f"l1 first epoch {losses[:20].mean():.4f}, last epoch {losses[-20:].mean():.4f}")


if __name__ == "__main__":
    main()

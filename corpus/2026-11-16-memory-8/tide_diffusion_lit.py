"""Denoising diffusion for tide gauge curves in Lightning, with an EMA copy and a length curriculum."""
import copy
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

T = 50
FULL = 96
LENGTHS = (32, 64, 96)


class Tides(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        t = torch.arange(FULL)[None]
        amp, phase = torch.rand(2, n, 1, generator=g)
        spring = torch.sin(2 * math.pi * t / 84 + 6 * phase)
        self.x = (0.6 + 0.4 * amp) * torch.sin(2 * math.pi * t / 12.4 + 6 * phase) * (1 + 0.3 * spring)
        self.cache = {}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        # at most one entry for each of the few hundred curves
        if i not in self.cache:
            self.cache[i] = (self.x[i] - self.x[i].mean()) / self.x[i].std()
        return self.cache[i]


class Denoiser(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.inp = nn.Conv1d(1, width, 5, padding=2)
        self.time = nn.Embedding(T, width)
        self.mid = nn.Conv1d(width, width, 5, padding=4, dilation=2)
        self.out = nn.Conv1d(width, 1, 5, padding=2)

    def forward(self, x, t):
        z = F.silu(self.inp(x[:, None]) + self.time(t)[..., None])
        return self.out(z + F.silu(self.mid(z))).squeeze(1)


class TideDiffusion(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Denoiser()
        self.ema = copy.deepcopy(self.net).requires_grad_(False)
        self.register_buffer("abar", torch.cumprod(1 - torch.linspace(1e-3, 0.12, T), 0))
        self.epoch_outputs = []

    def noisy_loss(self, net, x, gen=None):
        t = torch.randint(T, (len(x),), generator=gen)
        eps = torch.randn(x.shape, generator=gen)
        a = self.abar[t][:, None]
        return F.mse_loss(net(a.sqrt() * x + (1 - a).sqrt() * eps, t), eps)

    def training_step(self, batch, batch_idx):
        length = LENGTHS[min(self.current_epoch // 3, len(LENGTHS) - 1)]
        start = int(torch.randint(FULL - length + 1, (1,)))
        loss = self.noisy_loss(self.net, batch[:, start:start + length])
        self.epoch_outputs.append(loss.detach())
        return loss

    def on_train_batch_end(self, *args):
        decay = min(0.98, (1 + self.global_step) / (10 + self.global_step))
        with torch.no_grad():
            for e, p in zip(self.ema.parameters(), self.net.parameters()):
                e.lerp_(p, 1 - decay)

    def on_train_epoch_end(self):
        mean = torch.stack(self.epoch_outputs).mean()
        self.epoch_outputs.clear()
        print(f"epoch {self.current_epoch}: loss {mean:.3f} lr {self.optimizers().param_groups[0]['lr']:.1e}")

    def validation_step(self, batch, batch_idx):
        gen = torch.Generator().manual_seed(batch_idx)
        self.log("val", self.noisy_loss(self.ema, batch, gen))

    def on_validation_epoch_end(self):
        x = torch.randn(8, FULL, generator=torch.Generator().manual_seed(0))
        for i in reversed(range(T)):
            a, prev = self.abar[i], self.abar[i - 1] if i else torch.tensor(1.0)
            eps = self.ema(x, torch.full((8,), i))
            x0 = ((x - (1 - a).sqrt() * eps) / a.sqrt()).clamp(-3, 3)
            x = prev.sqrt() * x0 + (1 - prev).sqrt() * eps
        print(f"    val {self.trainer.callback_metrics['val']:.3f}, std of samples {x.std():.2f}")

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.net.parameters(), lr=3e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=3, T_mult=1)
        return {"optimizer": opt, "lr_scheduler": sched}


def main():
    L.seed_everything(23, verbose=False)
    train = DataLoader(Tides(640, seed=1), batch_size=32, shuffle=True)
    valid = DataLoader(Tides(64, seed=2), batch_size=32)
    trainer = L.Trainer(max_epochs=10, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(TideDiffusion(), train, valid)


if __name__ == "__main__":
    main()

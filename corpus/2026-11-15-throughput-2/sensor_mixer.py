import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class MixerBlock(nn.Module):
    def __init__(self, channels, length):
        super().__init__()
        self.norm_time = nn.LayerNorm(channels)
        self.time = nn.Sequential(nn.Linear(length, 24), nn.GELU(), nn.Linear(24, length))
        self.norm_chan = nn.LayerNorm(channels)
        self.chan = nn.Sequential(nn.Linear(channels, 48), nn.GELU(), nn.Linear(48, channels))

    def forward(self, x):
        x = x + self.time(self.norm_time(x).transpose(1, 2)).transpose(1, 2)
        return x + self.chan(self.norm_chan(x))


class SensorMixer(L.LightningModule):
    def __init__(self, sensors=8, channels=32, length=20, depth=8, classes=4):
        super().__init__()
        self.inp = nn.Linear(sensors, channels)
        self.blocks = nn.Sequential(*[MixerBlock(channels, length) for _ in range(depth)])
        self.out = nn.Linear(channels, classes)
        self.layer_stats = {}
        self.losses = []

    def forward(self, x):
        return self.out(self.blocks(self.inp(x)).mean(1))

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer):
        for name, param in self.named_parameters():
            grad = param.grad
            self.layer_stats[name] = {
                "grad_mean": grad.mean().item(),
                "grad_std": grad.std().item(),
                "grad_max": grad.abs().max().item(),
                "weight_mean": param.mean().item(),
                "weight_std": param.std().item(),
                "ratio": (grad.norm() / (param.norm() + 1e-8)).item(),
                "dead": (grad == 0).float().mean().item(),
            }

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def sensor_windows(count, length=20, sensors=8, classes=4):
    labels = torch.randint(0, classes, (count,))
    t = torch.arange(length).float()
    freq = 0.25 + 0.3 * labels.float()
    wave = torch.sin(freq[:, None] * t)[..., None] * torch.linspace(0.5, 1.5, sensors)
    return TensorDataset(wave + 0.7 * torch.randn(count, length, sensors), labels)


def main():
    torch.set_num_threads(1)
    L.seed_everything(8, verbose=False)
    loader = DataLoader(sensor_windows(1280), batch_size=32, shuffle=True)
    module = SensorMixer()
    trainer = L.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader)
    n = len(module.losses) // 3
    print(f"loss {sum(module.losses[:n]) / n:.3f} -> {sum(module.losses[-n:]) / n:.3f}")
    worst = max(module.layer_stats, key=lambda k: module.layer_stats[k]["grad_max"])
    print("largest gradient in", worst)


if __name__ == "__main__":
    main()

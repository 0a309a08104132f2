"""Wake-word spotting on log-mel patches, trained with Lightning."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(8, verbose=False)

MELS, FRAMES, WORDS = 32, 48, 6


def synth_patches(n):
    """Each word is a pair of chirps with its own slopes."""
    y = torch.randint(0, WORDS, (n,))
    t = torch.linspace(0, 1, FRAMES)
    mel = torch.arange(MELS).float()
    start = 4 + 20 * torch.rand(n, 1)
    slope = (y.float() - 2.5).unsqueeze(1) * 5 + torch.randn(n, 1)
    ridge = (start + slope * t).unsqueeze(1)
    echo = (start + 8 - slope * t).unsqueeze(1)
    grid = mel.view(1, MELS, 1)
    x = torch.exp(-(grid - ridge) ** 2 / 3) + 0.6 * torch.exp(-(grid - echo) ** 2 / 3)
    return (x + 0.35 * torch.randn(x.shape)).unsqueeze(1), y


class Spotter(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.mid = nn.Sequential(
            nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        self.deep = nn.Sequential(
            nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.head = nn.Linear(24, WORDS)
        self.epoch_loss, self.seen = 0.0, 0

    def forward(self, x):
        return self.head(self.deep(self.mid(self.stem(x))).mean((2, 3)))

    def training_step(self, batch, _):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.epoch_loss += loss.item() * len(y)
        self.seen += len(y)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=4e-3)


class LayerProbe:
    """Samples the outputs of some layers for a handful of batches."""

    def __init__(self, module, names, batches):
        self.batches = batches
        self.samples = {name: [] for name in names}
        for name in names:
            module.get_submodule(name).register_forward_hook(self._recorder(name))

    def _recorder(self, name):
        store = self.samples[name]

        def record(_module, _inputs, output):
            if len(store) < self.batches:
                store.append(output.detach())

        return record

    def sparsity(self):
        return {k: torch.cat(v).eq(0).float().mean().item() for k, v in self.samples.items() if v}


class SparsityReport(L.Callback):
    """Share of dead units at the beginning of every epoch."""

    def __init__(self, names=("stem", "mid", "deep"), batches=3):
        self.names, self.batches = names, batches
        self.probe = None

    def on_train_epoch_start(self, trainer, pl_module):
        pl_module.epoch_loss, pl_module.seen = 0.0, 0
        self.probe = LayerProbe(pl_module, self.names, self.batches)

    def on_train_epoch_end(self, trainer, pl_module):
        if trainer.current_epoch % 6 == 5:
            share = "  ".join(f"{k} {v:.2f}" for k, v in self.probe.sparsity().items())
            mean = pl_module.epoch_loss / pl_module.seen
            print(f"epoch {trainer.current_epoch + 1:2d}  loss {mean:.4f}  zeros: {share}")
        self.probe = None


def main():
    x, y = synth_patches(288)
    loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
    trainer = L.Trainer(
        max_epochs=18, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[SparsityReport()])
    trainer.fit(Spotter(), loader)


if __name__ == "__main__":
    main()

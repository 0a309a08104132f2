"""Jet tagging (light quark / b / top) from constituent clouds, a small deep-set in Lightning."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

CONSTITUENTS = 24
FEATURES = 5
CLASSES = 3


def make_jets(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (n,), generator=g)
    prongs = torch.randn(n, CLASSES, 2, generator=g) * 0.4
    which = (torch.rand(n, CONSTITUENTS, generator=g) * (y[:, None] + 1)).long()
    axis = torch.gather(prongs, 1, which[..., None].expand(-1, -1, 2))
    eta_phi = axis + 0.08 * torch.randn(n, CONSTITUENTS, 2, generator=g)
    pt = torch.rand(n, CONSTITUENTS, 1, generator=g).pow(3)
    charge = torch.randint(-1, 2, (n, CONSTITUENTS, 1), generator=g).float()
    ip = (y == 1).float()[:, None, None] * 0.3 * torch.rand(n, CONSTITUENTS, 1, generator=g)
    return TensorDataset(torch.cat([eta_phi, pt, charge, ip], -1), y)


class WorkingPoint:
    """Collects the embeddings and scores of an epoch; reports purity at fixed efficiency and class spread."""

    def __init__(self, embeddings=[], scores=[], labels=[]):
        self.embeddings = embeddings
        self.scores = scores
        self.labels = labels

    def add(self, embedding, score, label):
        self.embeddings.append(embedding.detach())
        self.scores.append(score.detach())
        self.labels.append(label)

    def compute(self, efficiency=0.7, last=20):
        score, label = torch.cat(self.scores[-last:]), torch.cat(self.labels[-last:])
        emb = torch.cat(self.embeddings[-last:]).mean(1)
        top = label == 2
        cut = score[top, 2].quantile(1 - efficiency)
        purity = (top & (score[:, 2] >= cut)).sum() / (score[:, 2] >= cut).sum().clamp(min=1)
        centres = torch.stack([emb[label == c].mean(0) for c in range(CLASSES)])
        return purity, torch.pdist(centres).mean()


class DeepSet(L.LightningModule):
    def __init__(self, width=48):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))

    def forward(self, x):
        z = self.phi(x)
        return z, self.rho(z.mean(1))

    def on_train_epoch_start(self):
        self.meter = WorkingPoint()

    def training_step(self, batch, batch_idx):
        x, y = batch
        z, logits = self(x)
        loss = F.cross_entropy(logits, y)
        self.meter.add(z, logits.softmax(-1), y)
        return loss

    def on_train_epoch_end(self):
        purity, spread = self.meter.compute()
        print(f"epoch {self.current_epoch}: purity at 70% {purity:.3f}, centre distance {spread:.3f}")

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_acc", (self(x)[1].argmax(-1) == y).float().mean(), prog_bar=False)

    def on_validation_epoch_end(self):
        acc = self.trainer.callback_metrics.get("val_acc")
        if acc is not None:
            print(f"    val accuracy {acc:.3f}")

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=2e-3)
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(opt, 8)}


def main():
    L.seed_everything(13, verbose=False)
    train = DataLoader(make_jets(5120, seed=1), batch_size=128, shuffle=True)
    valid = DataLoader(make_jets(768, seed=2), batch_size=256)
    trainer = L.Trainer(max_epochs=8, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0)
    trainer.fit(DeepSet(), train, valid)


if __name__ == "__main__":
    main()

import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_customers(n=480, n_features=6):
    g = torch.Generator().manual_seed(21)
    x = torch.randn(n, n_features, generator=g)
    w = torch.tensor([0.5, -0.3, 0.2, 0.0, 0.4, -0.1])
    scale = torch.exp(2.2 + x @ w)
    u = torch.rand(n, generator=g)
    months = scale * (-torch.log(u)) ** (1 / 1.4)
    tenure = torch.floor(months * 30) / 30
    churned = (torch.rand(n, generator=g) < 0.7).float()
    return x, tenure, churned


class ChurnModel(L.LightningModule):
    def __init__(self, n_features, lr=5e-3):
        super().__init__()
        self.lr = lr
        self.backbone = nn.Sequential(nn.Linear(n_features, 24), nn.Tanh(), nn.Dropout(0.1))
        self.shape_head = nn.Linear(24, 1)
        self.scale_head = nn.Linear(24, 1)
        self.seen = 0

    def forward(self, x):
        h = self.backbone(x)
        k = nn.functional.softplus(self.shape_head(h)).squeeze(-1) + 0.1
        lam = nn.functional.softplus(self.scale_head(h)).squeeze(-1) + 0.1
        return k, lam

    def log_hazard(self, t, k, lam):
        log_t = t.log()
        return k.log() - k * lam.log() + (k - 1) * log_t

    def cumulative_hazard(self, t, k, lam):
        return ((t + 1e-6) / lam).pow(k).clamp(max=1e4)

    def training_step(self, batch, batch_idx):
        x, t, event = batch
        k, lam = self(x)
        log_lik = event * self.log_hazard(t, k, lam) - self.cumulative_hazard(t, k, lam)
        loss = -log_lik.mean()
        self.seen += len(x)
        if batch_idx % 10 == 0:
            print(f"epoch {self.current_epoch} seen {self.seen} nll {loss.item():.4f}")
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }


def main():
    L.seed_everything(7, verbose=False)
    x, tenure, churned = make_customers()
    loader = DataLoader(TensorDataset(x, tenure, churned), batch_size=16, shuffle=True)
    model = ChurnModel(x.shape[1])
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(model, loader)
    print("done after", trainer.global_step, "steps")


if __name__ == "__main__":
    main()

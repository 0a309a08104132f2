import logging
import tempfile
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def make_slides(count, size=40):
    axis = torch.arange(size).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    mask = torch.zeros(count, size, size)
    for _ in range(5):
        centre = size * torch.rand(count, 2, 1, 1)
        radius = 3 + 4 * torch.rand(count, 1, 1)
        disc = ((yy - centre[:, 0]) ** 2 + (xx - centre[:, 1]) ** 2).sqrt() < radius
        mask = torch.maximum(mask, disc.float())
    stain = torch.stack([0.8 - 0.5 * mask, 0.6 - 0.3 * mask, 0.9 - 0.2 * mask], dim=1)
    return TensorDataset(stain + 0.15 * torch.randn_like(stain), mask)


def double_conv(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    )


class NucleiNet(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.down1, self.down2 = double_conv(3, 12), double_conv(12, 24)
        self.bottom = double_conv(24, 32)
        self.up2, self.up1 = double_conv(56, 24), double_conv(36, 12)
        self.outputs = nn.ModuleList([nn.Conv2d(c, 1, 1) for c in (12, 24, 32)])
        self.weights = [1.0, 0.5, 0.25]
        self.predicted, self.expected = [], []

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        d = self.up2(torch.cat([b, F.interpolate(c, scale_factor=2)], dim=1))
        e = self.up1(torch.cat([a, F.interpolate(d, scale_factor=2)], dim=1))
        return [head(level) for head, level in zip(self.outputs, (e, d, c))]

    def training_step(self, batch, batch_idx):
        x, mask = batch
        losses = []
        for weight, logits in zip(self.weights, self(x)):
            target = F.interpolate(mask[:, None], size=logits.shape[-2:], mode="area")
            losses.append(weight * F.binary_cross_entropy_with_logits(logits, target))
        loss = torch.stack(losses).sum()
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        x, mask = batch
        self.predicted.append(self(x)[0].squeeze(1).sigmoid())
        self.expected.append(mask)

    def on_validation_epoch_end(self):
        predicted, expected = torch.cat(self.predicted), torch.cat(self.expected)
        hard = (predicted > 0.5).float()
        dice = 2 * (hard * expected).sum() / (hard.sum() + expected.sum())
        self.log("dice", dice)
        self.predicted.clear()
        self.expected.clear()

    def on_train_epoch_end(self):
        values = self.trainer.callback_metrics
        print(
            f"{self.current_epoch}: {values['train_loss'].item():.4f} {values['dice'].item():.3f}"
        )

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


if __name__ == "__main__":
    L.seed_everything(1)
    folder = tempfile.mkdtemp(prefix="nuclei_")
    trainer = L.Trainer(
        max_epochs=4,
        accelerator="cpu",
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(dirpath=folder, monitor="dice", mode="max")],
    )
    trainer.fit(
        NucleiNet(),
        DataLoader(make_slides(240), batch_size=12, shuffle=True),
        DataLoader(make_slides(96), batch_size=16),
    )

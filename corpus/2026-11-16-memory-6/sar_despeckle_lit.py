import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
L.seed_everything(3, verbose=False)


def synth_scenes(n, size=48):
    base = torch.rand(n, 1, size // 8, size // 8)
    clean = F.interpolate(base, size=size, mode="bilinear", align_corners=False)
    edges = (F.interpolate(torch.rand(n, 1, 4, 4), size=size, mode="nearest") > 0.6).float()
    clean = (0.2 + 0.6 * clean + 0.3 * edges).clamp(0, 1.2)
    looks = 4.0
    speckle = torch.distributions.Gamma(looks, looks).sample(clean.shape)
    return clean * speckle, clean


class ResBlock(nn.Module):
    def __init__(self, ch):
        super().__init__()
        self.conv1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.conv2 = nn.Conv2d(ch, ch, 3, padding=1)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(x)))


class Despeckler(L.LightningModule):
    def __init__(self, ch=8, lr=2e-3):
        super().__init__()
        self.lr = lr
        self.head = nn.Conv2d(4, ch, 3, padding=1)
        self.body = ResBlock(ch)
        self.tail = nn.Conv2d(ch, 4, 3, padding=1)
        self.training_step_outputs = []

    def forward(self, noisy):
        log_noisy = torch.log(noisy + 1e-3)
        feats = self.body(self.head(F.pixel_unshuffle(log_noisy, 2)))
        return torch.exp(log_noisy - F.pixel_shuffle(self.tail(feats), 2))

    def total_variation(self, img):
        dh = (img[..., 1:, :] - img[..., :-1, :]).abs().mean()
        dw = (img[..., :, 1:] - img[..., :, :-1]).abs().mean()
        return dh + dw

    def training_step(self, batch, batch_idx):
        noisy, clean = batch
        restored = self(noisy)
        l1 = F.l1_loss(restored, clean)
        tv = self.total_variation(restored)
        loss = l1 + 0.02 * tv
        psnr = -10 * torch.log10(F.mse_loss(restored, clean))
        self.training_step_outputs.append({"loss": loss, "psnr": psnr, "restored": restored})
        return loss

    def on_train_epoch_end(self):
        outs = self.training_step_outputs[-self.trainer.num_training_batches:]
        loss = torch.stack([o["loss"] for o in outs]).mean()
        psnr = torch.stack([o["psnr"] for o in outs]).mean()
        ratio = torch.cat([o["restored"] for o in outs]).mean()
        print(f"epoch {self.current_epoch}: loss {loss:.4f}  psnr {psnr:.2f} dB  mean level {ratio:.3f}")

    def validation_step(self, batch, batch_idx):
        noisy, clean = batch
        self.log("val_l1", F.l1_loss(self(noisy), clean))

    def on_validation_epoch_end(self):
        print(f"          val l1 {self.trainer.callback_metrics['val_l1']:.4f}")

    def configure_optimizers(self):
        opt = torch.optim.Adam(self.parameters(), lr=self.lr)
        sched = torch.optim.lr_scheduler.StepLR(opt, 3, gamma=0.5)
        return [opt], [sched]


def main():
    train = TensorDataset(*synth_scenes(640))
    val = TensorDataset(*synth_scenes(96))
    model = Despeckler()
    trainer = L.Trainer(
        max_epochs=5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=2,
    )
    trainer.fit(
        model,
        DataLoader(train, batch_size=16, shuffle=True),
        DataLoader(val, batch_size=32),
    )
    print("trained", trainer.global_step, "steps")


if __name__ == "__main__":
    main()

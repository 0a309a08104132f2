"""Person re-identification head: warm start on identities, then triplet fine-tuning with gradual unfreezing."""
import logging
import random
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import BaseFinetuning
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)
L.seed_everything(8, verbose=False)

N_PEOPLE, SHOTS, P, K = 60, 16, 6, 4


class Gallery(Dataset):
    def __init__(self, people, shots, seed):
        g = torch.Generator().manual_seed(1)
        look = F.interpolate(torch.randn(people, 3, 8, 4, generator=g), size=(32, 16), mode="bilinear")
        g.manual_seed(seed)
        self.y = torch.arange(people).repeat_interleave(shots)
        self.x = look[self.y] + 0.85 * torch.randn(len(self.y), 3, 32, 16, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        img = self.x[i]
        if random.random() < 0.5:
            img = img.roll(random.randint(-2, 2), dims=1)
        return img, self.y[i]


class PKSampler(Sampler):
    def __init__(self, n_batches):
        self.n_batches = n_batches

    def __len__(self):
        return self.n_batches

    def __iter__(self):
        for _ in range(self.n_batches):
            ids = random.sample(range(N_PEOPLE), P)
            yield [p * SHOTS + s for p in ids for s in random.sample(range(SHOTS), K)]


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.ReLU(), nn.MaxPool2d(2))


class ReID(L.LightningModule):
    def __init__(self, margin=0.3):
        super().__init__()
        self.stage1, self.stage2, self.stage3 = block(3, 16), block(16, 24), block(24, 32)
        self.embed = nn.Sequential(nn.Flatten(), nn.Linear(32 * 8, 96))
        self.margin = margin
        self.trace = []

    def forward(self, x):
        return F.normalize(self.embed(self.stage3(self.stage2(self.stage1(x)))), dim=-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        z = self(x)
        dist = (2 - 2 * z @ z.T).clamp_min(1e-9).sqrt()
        same = y[:, None] == y[None]
        far_pos = dist.masked_fill(~same, -float("inf")).amax(1)
        near_neg = dist.masked_fill(same, float("inf")).amin(1)
        loss = F.relu(far_pos - near_neg + self.margin).mean()
        self.trace.append(loss.item())
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        z = self(x)
        sim = (z @ z.T).fill_diagonal_(-1)
        self.log("rank1", (y[sim.argmax(1)] == y).float().mean())

    def on_validation_epoch_end(self):
        tail = self.trace[-21:]
        print(f"epoch {self.current_epoch} rank1 {self.trainer.callback_metrics['rank1']:.3f} "
              f"triplet {sum(tail) / max(len(tail), 1):.4f} zero batches {sum(v == 0 for v in tail)}")

    def configure_optimizers(self):
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=3e-4)


class StageUnfreezer(BaseFinetuning):
    plan = {2: "stage3", 4: "stage2", 6: "stage1"}

    def freeze_before_training(self, module):
        self.freeze([module.stage1, module.stage2, module.stage3])

    def finetune_function(self, module, epoch, optimizer):
        if epoch in self.plan:
            self.unfreeze_and_add_param_group(getattr(module, self.plan[epoch]), optimizer, lr=1e-4)


def warm_start(net, data, steps=70):
    head = nn.Linear(96, N_PEOPLE)
    opt = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
    for step in range(steps):
        pick = torch.randint(0, len(data), (24,))
        loss = F.cross_entropy(head(16 * net(data.x[pick])), data.y[pick])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"identity warm start, loss {loss.item():.3f}")


if __name__ == "__main__":
    train_set, query_set = Gallery(N_PEOPLE, SHOTS, 2), Gallery(N_PEOPLE, 3, 3)
    net = ReID()
    warm_start(net, train_set)
    train_dl = DataLoader(train_set, batch_sampler=PKSampler(21), num_workers=1, persistent_workers=True)
    val_dl = DataLoader(query_set, batch_size=180)
    L.Trainer(accelerator="cpu", max_epochs=9, check_val_every_n_epoch=3, callbacks=[StageUnfreezer()],
              logger=False, enable_checkpointing=False, enable_progress_bar=False, num_sanity_val_steps=0,
              enable_model_summary=False).fit(net, train_dl, val_dl)

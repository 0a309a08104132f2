"""Message passing on small random molecules, with Lightning."""
import os
import tempfile
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
ATOMS = 5


def molecules(n, seed):
    """Random trees with one ring closure; the target depends on hetero atoms and branching."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for _ in range(n):
        size = int(torch.randint(6, 16, (1,), generator=g))
        kind = torch.randint(0, ATOMS, (size,), generator=g)
        parent = (torch.rand(size - 1, generator=g) * torch.arange(1, size)).long()
        src = torch.cat([torch.arange(1, size), torch.tensor([size - 1])])
        dst = torch.cat([parent, torch.tensor([0])])
        degree = torch.bincount(torch.cat([src, dst]), minlength=size)
        target = (kind == 1).float().sum() * 0.4 - (degree > 2).float().sum() * 0.3 + (kind == 3).float().mean()
        out.append((kind, torch.stack([torch.cat([src, dst]), torch.cat([dst, src])]), target))
    return out


def collate(graphs):
    offset, kinds, edges, owner, targets = 0, [], [], [], []
    for i, (kind, edge, target) in enumerate(graphs):
        kinds.append(kind)
        edges.append(edge + offset)
        owner.append(torch.full((len(kind),), i))
        targets.append(target)
        offset += len(kind)
    return torch.cat(kinds), torch.cat(edges, dim=1), torch.cat(owner), torch.stack(targets)


class MessageNet(L.LightningModule):
    def __init__(self, width=48, rounds=3):
        super().__init__()
        self.embed = nn.Embedding(ATOMS, width)
        self.message = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))
        self.update = nn.ModuleList(nn.GRUCell(width, width) for _ in range(rounds))
        self.readout = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, kind, edge, owner, n):
        h = self.embed(kind)
        src, dst = edge
        for message, update in zip(self.message, self.update):
            m = F.silu(message(torch.cat([h[src], h[dst]], dim=1)))
            h = update(torch.zeros_like(h).index_add(0, dst, m), h)
        pooled = torch.zeros(n, h.shape[1]).index_add(0, owner, h)
        return self.readout(pooled).squeeze(1)

    def training_step(self, batch, _):
        kind, edge, owner, target = batch
        loss = F.smooth_l1_loss(self(kind, edge, owner, len(target)), target)
        self.log("loss", loss, batch_size=len(target))
        return loss

    def validation_step(self, batch, _):
        kind, edge, owner, target = batch
        self.log("mae", F.l1_loss(self(kind, edge, owner, len(target)), target), batch_size=len(target))

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=2e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6)
        return [opt], [sched]


def main():
    L.seed_everything(33)
    train = DataLoader(molecules(1200, 0), batch_size=24, shuffle=True, collate_fn=collate)
    val = DataLoader(molecules(72, 1), batch_size=72, collate_fn=collate)
    with tempfile.TemporaryDirectory() as folder:
        keep = ModelCheckpoint(dirpath=os.path.join(folder, "best"), monitor="mae", save_top_k=1)
        trainer = L.Trainer(
            max_epochs=6, accelerator="cpu", logger=False, callbacks=[keep], val_check_interval=25,
            default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )
        trainer.fit(MessageNet(), train, val)
        print("best mae", round(float(keep.best_model_score), 4), "steps", trainer.global_step)


if __name__ == "__main__":
    main()

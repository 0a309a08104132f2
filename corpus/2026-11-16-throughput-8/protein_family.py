"""Protein family prediction with a small 1-d convolutional network (Lightning)."""
import random
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
RESIDUES = "ACDEFGHIKLMNPQRSTVWY"
GROUPS = ["AVLIMC", "FWYH", "STNQ", "KR", "DE", "GP"]
N_FAMILIES = 6


def similarity_table():
    """A coarse substitution table: same residue, same group, or different."""
    table = {}
    for a in RESIDUES:
        table[a] = {}
        for b in RESIDUES:
            same_group = any(a in g and b in g for g in GROUPS)
            table[a][b] = 4.0 if a == b else (1.0 if same_group else -1.0)
    return table


SIMILARITY = similarity_table()


def make_sequences(n, seed):
    rng = random.Random(seed)
    motifs = ["".join(random.Random(100 + f).choices(RESIDUES, k=12)) for f in range(N_FAMILIES)]
    records = []
    for _ in range(n):
        family = rng.randrange(N_FAMILIES)
        length = rng.randint(90, 150)
        seq = rng.choices(RESIDUES, k=length)
        start = rng.randrange(length - 12)
        for k, residue in enumerate(motifs[family]):
            if rng.random() < 0.85:
                seq[start + k] = residue
        records.append(("".join(seq), family))
    return records


class SequenceSet(Dataset):
    def __init__(self, records):
        self.records = records

    def __len__(self):
        return len(self.records)

    def __getitem__(self, i):
        return self.records[i]


def collate(records):
    longest = max(len(seq) for seq, _ in records)
    profiles, masks = [], []
    for seq, _ in records:
        rows = [[SIMILARITY[a][b] for b in RESIDUES] for a in seq]
        rows += [[0.0] * len(RESIDUES) for _ in range(longest - len(seq))]
        profiles.append(rows)
        masks.append([1.0] * len(seq) + [0.0] * (longest - len(seq)))
    x = torch.tensor(profiles).transpose(1, 2) / 4.0
    return x, torch.tensor(masks), torch.tensor([family for _, family in records])


class FamilyModel(L.LightningModule):
    def __init__(self, width=32, lr=3e-3):
        super().__init__()
        self.lr = lr
        self.conv1 = nn.Conv1d(len(RESIDUES), width, 9, padding=4)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.out = nn.Linear(width, N_FAMILIES)

    def forward(self, x, mask):
        h = F.relu(self.conv1(x))
        h = F.relu(self.conv2(h))
        h = h.masked_fill(mask[:, None] == 0, -1e4).amax(dim=2)
        return self.out(h)

    def training_step(self, batch, batch_idx):
        x, mask, family = batch
        loss = F.cross_entropy(self(x, mask), family)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, mask, family = batch
        self.log("val_acc", (self(x, mask).argmax(1) == family).float().mean(), batch_size=len(family))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def main():
    L.seed_everything(5)
    train = DataLoader(SequenceSet(make_sequences(1280, 1)), batch_size=32, shuffle=True, collate_fn=collate)
    val = DataLoader(SequenceSet(make_sequences(96, 2)), batch_size=32, collate_fn=collate)
    model = FamilyModel()
    trainer = L.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        check_val_every_n_epoch=5,
    )
    trainer.fit(model, train, val)
    print({k: round(float(v), 4) for k, v in trainer.callback_metrics.items()}, "steps", trainer.global_step)


if __name__ == "__main__":
    main()

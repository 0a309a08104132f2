import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed


class ListingPairs(Dataset):
    def __init__(self, n=400, length=10, vocab=60):
        g = torch.Generator().manual_seed(5)
        self.left = torch.randint(1, vocab, (n, length), generator=g)
        self.same = torch.rand(n, generator=g) < 0.5
        noise = torch.randint(1, vocab, (n, length), generator=g)
        n_edits = torch.randint(0, length, (n,), generator=g)
        n_edits = torch.where(torch.rand(n, generator=g) < 0.98, n_edits.clamp(min=1), n_edits)
        edited = self.left.clone()
        for i in range(n):
            pos = torch.randperm(length, generator=g)[: int(n_edits[i])]
            edited[i, pos] = vocab + pos
        self.right = torch.where(self.same.unsqueeze(1), edited, noise)
        self.vocab = vocab + length

    def __len__(self):
        return len(self.left)

    def __getitem__(self, i):
        return {
            "left_ids": self.left[i],
            "right_ids": self.right[i],
            "labels": self.same[i].float(),
        }


class TitleEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.proj = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))

    def forward(self, ids):
        return self.proj(self.emb(ids).mean(dim=1))


class SiameseForDedup(nn.Module):
    def __init__(self, vocab, dim=24, margin=1.0):
        super().__init__()
        self.encoder = TitleEncoder(vocab, dim)
        self.margin = margin

    def forward(self, left_ids, right_ids, labels=None):
        a = self.encoder(left_ids)
        b = self.encoder(right_ids)
        dist = (a - b).square().sum(dim=-1).sqrt()
        out = {"logits": dist}
        if labels is not None:
            pull = labels * dist
            push = (1 - labels) * torch.relu(self.margin - dist)
            out["loss"] = (pull + push).mean()
        return out


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']}")


def main():
    set_seed(11)
    data = ListingPairs()
    model = SiameseForDedup(data.vocab)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=10,
        max_steps=60,
        learning_rate=2e-3,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=11,
    )
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[PrintLoss()])
    trainer.train()
    print("finished", trainer.state.global_step)


if __name__ == "__main__":
    main()

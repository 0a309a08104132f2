"""Routing of support tickets with a tiny BERT and the transformers Trainer."""
import json
import os
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

TEAMS = {
    "billing": "invoice refund charge card payment price tax receipt".split(),
    "access": "login password account locked reset token email code".split(),
    "device": "screen battery charger broken cable noise heat sensor".split(),
}
FILLER = "please help my the is not since yesterday again with and order team today".split()
VOCAB = ["[PAD]", "[CLS]"] + sorted({w for ws in TEAMS.values() for w in ws} | set(FILLER))
WORD_ID = {w: i for i, w in enumerate(VOCAB)}
LENGTH = 20


def write_ticket(rng):
    team = rng.randrange(len(TEAMS))
    words = rng.choices(FILLER, k=13) + rng.choices(list(TEAMS.values())[team], k=3)
    words += rng.choices([w for ws in TEAMS.values() for w in ws], k=2)
    rng.shuffle(words)
    return words, team


class Tickets(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            words, team = write_ticket(rng)
            ids = [WORD_ID["[CLS]"]] + [WORD_ID[w] for w in words]
            ids += [0] * (LENGTH - len(ids))
            self.rows.append({
                "input_ids": torch.tensor(ids),
                "attention_mask": (torch.tensor(ids) != 0).long(),
                "labels": torch.tensor(team),
            })

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class GradientJournal(TrainerCallback):
    """Keeps a machine readable record of the gradient norm of every weight."""

    def __init__(self, path):
        self.path = path
        self.entries = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        named = [(n, p) for n, p in model.named_parameters() if p.grad is not None]
        norms = torch.stack(torch._foreach_norm([p.grad for _, p in named])).tolist()
        self.entries.append({
            "step": state.global_step,
            "norms": {name: norm for (name, _), norm in zip(named, norms)},
        })
        with open(self.path, "w") as handle:
            json.dump(self.entries, handle, indent=1)


def main():
    config = BertConfig(
        vocab_size=len(VOCAB), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=len(TEAMS), pad_token_id=0,
    )
    torch.manual_seed(2)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder, max_steps=220, per_device_train_batch_size=16, learning_rate=2e-3,
            warmup_steps=20, logging_steps=55, save_strategy="no", report_to=[], use_cpu=True,
            seed=2, disable_tqdm=True,
        )
        journal = GradientJournal(os.path.join(folder, "gradients.json"))
        trainer = Trainer(
            model=BertForSequenceClassification(config), args=args,
            train_dataset=Tickets(2000, 0), callbacks=[journal],
        )
        result = trainer.train()
        with open(journal.path) as handle:
            print("steps recorded:", len(json.load(handle)), " final loss:", round(result.training_loss, 4))


if __name__ == "__main__":
    main()

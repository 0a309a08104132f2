"""Small GPT on synthetic chord progressions with the transformers Trainer.

Besides the loss we report how sure the model is about the next chord.
"""
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

ROOTS = 12
QUALITIES = 16
VOCAB = ROOTS * QUALITIES
BARS = 32


class Progressions(Dataset):
    """Chains of fifths and steps, with now and then a substitution."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(n):
            root, quality = int(rng.integers(ROOTS)), int(rng.integers(QUALITIES))
            row = []
            for _ in range(BARS):
                row.append(root * QUALITIES + quality)
                move = rng.choice([5, 7, 2], p=[0.7, 0.2, 0.1])
                root = (root + int(move)) % ROOTS
                if rng.random() < 0.2:
                    quality = (quality + 3) % QUALITIES
            self.rows.append(torch.tensor(row))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i], "labels": self.rows[i]}


class ChordTrainer(Trainer):
    """Adds the entropy of the predicted chord distribution to what is logged."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.entropy_sum = 0.0
        self.entropy_n = 0

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1]
        loss = F.cross_entropy(logits.reshape(-1, VOCAB), inputs["labels"][:, 1:].reshape(-1))
        if model.training:
            logp = logits.log_softmax(-1)
            entropy = -(logp.exp() * logp).sum(-1)
            self.entropy_sum += entropy.mean()
            self.entropy_n += 1
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *args, **kwargs):
        if self.entropy_n:
            logs["mean_entropy"] = round(float(self.entropy_sum / self.entropy_n), 4)
        super().log(logs, *args, **kwargs)


class Printer(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            print(f"step {state.global_step:4d} loss {logs['loss']} entropy {logs.get('mean_entropy')}")


def main():
    set_seed(4)
    config = GPT2Config(vocab_size=VOCAB, n_positions=BARS, n_embd=32, n_layer=1, n_head=2,
                        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, max_steps=240, per_device_train_batch_size=12, learning_rate=3e-3,
            warmup_steps=20, logging_steps=40, save_strategy="no", report_to=[], disable_tqdm=True,
            use_cpu=True, seed=4,
        )
        trainer = ChordTrainer(model=model, args=args, train_dataset=Progressions(900, seed=1),
                               eval_dataset=Progressions(60, seed=2), callbacks=[Printer()])
        trainer.train()
        print({k: round(v, 4) for k, v in trainer.evaluate().items() if k == "eval_loss"})


if __name__ == "__main__":
    main()

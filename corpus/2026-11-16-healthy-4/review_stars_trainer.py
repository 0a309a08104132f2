import random
import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

torch.set_num_threads(1)

PAD, VOCAB, STARS = 0, 800, 3


class Reviews(Dataset):
    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.rows = []
        for _ in range(n):
            star = rng.randrange(STARS)
            length = rng.randint(10, 64)
            ids = [rng.randrange(100, VOCAB) for _ in range(length)]
            for spot in rng.sample(range(length), 3):
                ids[spot] = 10 + 20 * star + rng.randrange(20)
            self.rows.append((ids, star))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, star = self.rows[i]
        return {"input_ids": ids, "labels": star}


def collate(rows):
    longest = max(len(r["input_ids"]) for r in rows)
    longest = (longest + 15) // 16 * 16
    ids = torch.full((len(rows), longest), PAD)
    for k, r in enumerate(rows):
        ids[k, : len(r["input_ids"])] = torch.tensor(r["input_ids"])
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.tensor([r["labels"] for r in rows]),
    }


class SmoothedAverage(TrainerCallback):
    """Keeps an exponential average of the weights next to the live ones."""

    def __init__(self, decay=0.97):
        self.decay, self.shadow = decay, None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        with torch.no_grad():
            live = model.state_dict()
            if self.shadow is None:
                self.shadow = {k: v.clone() for k, v in live.items()}
            for name, value in live.items():
                if value.is_floating_point():
                    self.shadow[name].lerp_(value, 1 - self.decay)


def accuracy(prediction):
    return {"acc": float(np.mean(prediction.predictions.argmax(-1) == prediction.label_ids))}


def main():
    set_seed(19)
    model = DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=VOCAB, max_position_embeddings=64, n_layers=2, n_heads=4, dim=96,
            hidden_dim=192, num_labels=STARS, pad_token_id=PAD,
        )
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=32,
            learning_rate=1e-3,
            warmup_steps=10,
            logging_steps=25,
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=2,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        average = SmoothedAverage()
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=Reviews(800, 1),
            eval_dataset=Reviews(128, 2),
            data_collator=collate,
            compute_metrics=accuracy,
            callbacks=[average],
        )
        trainer.train()
        model.load_state_dict(average.shadow)
        print("averaged weights:", trainer.evaluate()["eval_acc"])


if __name__ == "__main__":
    main()

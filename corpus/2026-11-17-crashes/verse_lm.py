"""Character language model (GRU) over a handful of generated verses."""
import random
from dataclasses import dataclass

import torch
from torch import nn

from textkit.vocab import CharVocab, join_documents

NOUNS = ["river", "stone", "lantern", "sparrow", "harbor", "winter", "meadow"]
VERBS = ["sleeps", "wanders", "burns", "listens", "returns", "waits"]
PLACES = ["in the valley", "under the bridge", "by the old gate", "over the hill"]


@dataclass
class Settings:
    hidden: int = 64
    embed: int = 24
    window: int = 32
    rows: int = 8
    lr: float = 3e-3
    epochs: int = 2


def write_document(rng, lines):
    out = []
    for _ in range(lines):
        out.append(f"the {rng.choice(NOUNS)} {rng.choice(VERBS)} {rng.choice(PLACES)}")
    return "\n".join(out)


class CharModel(nn.Module):
    def __init__(self, vocab_size, settings):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, settings.embed)
        self.rnn = nn.GRU(settings.embed, settings.hidden, batch_first=True)
        self.decoder = nn.Linear(settings.hidden, vocab_size)

    def forward(self, ids):
        states, _ = self.rnn(self.embedding(ids))
        return self.decoder(states)


def batches(ids, settings):
    span = settings.rows * settings.window
    for start in range(0, len(ids) - span - 1, span):
        chunk = ids[start : start + span + 1]
        inputs = chunk[:-1].view(settings.rows, settings.window)
        targets = chunk[1:].view(settings.rows, settings.window)
        yield inputs, targets


def main():
    settings = Settings()
    torch.manual_seed(1)
    rng = random.Random(7)
    documents = [write_document(rng, 150) for _ in range(4)]
    vocab = CharVocab("".join(documents))
    model = CharModel(len(vocab), settings)
    ids = torch.tensor(join_documents(documents, vocab))
    print(f"{len(ids)} tokens, {sum(p.numel() for p in model.parameters())} parameters")

    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr)
    criterion = nn.CrossEntropyLoss(ignore_index=vocab.stoi["<eod>"])
    for epoch in range(settings.epochs):
        for step, (inputs, targets) in enumerate(batches(ids, settings)):
            logits = model(inputs)
            loss = criterion(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

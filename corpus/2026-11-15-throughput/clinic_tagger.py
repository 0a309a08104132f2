"""Tags drugs, doses and symptoms in clinic notes with a bidirectional LSTM."""

from collections import Counter

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
TAGS = ["O", "DRUG", "DOSE", "SYMPTOM", "PAD"]
PAD = TAGS.index("PAD")


def synth_notes(count, length=44, vocab=300):
    gen = torch.Generator().manual_seed(21)
    words = torch.randint(40, vocab, (count, length), generator=gen)
    tags = torch.zeros_like(words)
    tags[words % 11 == 0] = 1
    after_drug = torch.zeros_like(tags, dtype=torch.bool)
    after_drug[:, 1:] = tags[:, :-1] == 1
    tags[after_drug & (words % 2 == 0)] = 2
    tags[(words % 7 == 3) & (tags == 0)] = 3
    lengths = torch.randint(length // 2, length + 1, (count,), generator=gen)
    padding = torch.arange(length)[None] >= lengths[:, None]
    words[padding], tags[padding] = 0, PAD
    return TensorDataset(words, tags)


class Tagger(nn.Module):
    def __init__(self, vocab=300, width=40):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, len(TAGS) - 1)

    def forward(self, words):
        return self.out(self.lstm(self.embed(words))[0])


def make_scorer():
    counts = Counter()

    def add(predicted, gold):
        rows, cols = gold.shape
        for r in range(rows):
            for c in range(cols):
                truth = gold[r, c].item()
                if truth == PAD:
                    continue
                guess = predicted[r, c].item()
                counts["hit"] += guess == truth and truth != 0
                counts["guessed"] += guess != 0
                counts["true"] += truth != 0

    def f1():
        precision = counts["hit"] / max(1, counts["guessed"])
        recall = counts["hit"] / max(1, counts["true"])
        counts.clear()
        return 2 * precision * recall / max(1e-9, precision + recall)

    return add, f1


def main():
    torch.manual_seed(2)
    loader = DataLoader(synth_notes(1280), batch_size=32, shuffle=True)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    add_to_score, finish_score = make_scorer()
    for epoch in range(6):
        total = 0.0
        for words, tags in loader:
            logits = model(words)
            loss = criterion(logits.flatten(0, 1), tags.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            add_to_score(logits.argmax(-1), tags)
            total += loss.item()
        print(f"epoch {epoch} loss {total / len(loader):.4f} f1 {finish_score():.3f}")


if __name__ == "__main__":
    main()

"""Sentiment fine-tuning of a bag-of-ngrams encoder with resumable checkpoints."""

import copy
import os
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

HPARAMS = {
    "vocab": 40000,
    "width": 128,
    "epochs": 3,
    "batch_size": 64,
    "lr": 2e-2,
    "pull": 0.01,
    "save_every": 5,
}


class ReviewEncoder(nn.Module):
    def __init__(self, vocab, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, width, mode="mean", sparse=True)
        self.body = nn.Sequential(nn.Linear(width, 384), nn.GELU(), nn.LayerNorm(384))
        self.out = nn.Linear(384, 2)

    def forward(self, tokens):
        return self.out(self.body(self.bag(tokens)))


def fake_reviews(vocab, count=3840, length=40):
    tokens = torch.randint(0, vocab, (count, length))
    labels = torch.randint(0, 2, (count,))
    flagged = torch.rand(count, length) < 0.15
    mood = torch.randint(0, 200, (count, length)) + 200 * labels[:, None]
    return torch.where(flagged, mood, tokens), labels


def write_checkpoint(path, state):
    partial = path + ".partial"
    with open(partial, "wb") as handle:
        torch.save(state, handle)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(partial, path)


def distance_to(anchor, model):
    pairs = zip(anchor.body.parameters(), model.body.parameters())
    return sum((a - p).square().sum() for a, p in pairs)


def finetune(hp):
    torch.manual_seed(40)
    folder = tempfile.mkdtemp(prefix="reviews_")
    tokens, labels = fake_reviews(hp["vocab"])
    loader = DataLoader(
        TensorDataset(tokens, labels), batch_size=hp["batch_size"], shuffle=True, drop_last=True
    )
    model = ReviewEncoder(hp["vocab"], hp["width"])
    anchor = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=hp["lr"])
    step, recent = 0, []
    for epoch in range(hp["epochs"]):
        for words, sentiment in loader:
            loss = nn.functional.cross_entropy(model(words), sentiment)
            loss = loss + hp["pull"] * distance_to(anchor, model)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            recent.append(loss.item())
            step += 1
            if step % hp["save_every"] == 0:
                state = {
                    "step": step,
                    "model": model.state_dict(),
                    "anchor": anchor.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "hparams": hp,
                }
                write_checkpoint(os.path.join(folder, "last.pt"), state)
        print(f"epoch {epoch} loss {sum(recent) / len(recent):.4f}")
        recent.clear()


if __name__ == "__main__":
    finetune(HPARAMS)

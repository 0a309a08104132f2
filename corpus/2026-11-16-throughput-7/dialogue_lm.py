"""Small GRU language model over a corpus of dialogue turns kept as plain records."""
import gc
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

VOCAB = 400
SPEAKERS = ["anna", "ben", "cleo", "dan"]


def build_corpus(turns, rng):
    """Turns follow a noisy successor rule so that there is something to learn."""
    corpus = []
    for n in range(turns):
        token = rng.randrange(2, VOCAB)
        tokens = [1]
        for _ in range(rng.randrange(6, 14)):
            tokens.append(token)
            token = 2 + (token * 7 + rng.randrange(3)) % (VOCAB - 2)
        corpus.append({
            "id": n,
            "tokens": tokens,
            "meta": {"speaker": rng.choice(SPEAKERS), "tags": [n % 7, n % 11]},
        })
    return corpus


class TurnModel(nn.Module):
    def __init__(self, dim=64, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.speaker = nn.Embedding(len(SPEAKERS), dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True)
        self.out = nn.Linear(hidden, VOCAB)

    def forward(self, tokens, speaker):
        x = self.embed(tokens) + self.speaker(speaker).unsqueeze(1)
        states, _ = self.rnn(x)
        return self.out(states)


class Trainer:
    def __init__(self, corpus, rng, batch_size=32, lr=4e-3):
        self.corpus = corpus
        self.rng = rng
        self.batch_size = batch_size
        self.model = TurnModel()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.step = 0
        self.smooth = None

    def batch(self):
        turns = self.rng.sample(self.corpus, self.batch_size)
        tokens = pad_sequence([torch.tensor(t["tokens"]) for t in turns], batch_first=True)
        speaker = torch.tensor([SPEAKERS.index(t["meta"]["speaker"]) for t in turns])
        return tokens, speaker

    def training_step(self):
        tokens, speaker = self.batch()
        logits = self.model(tokens[:, :-1], speaker)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def free_memory(self):
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def fit(self, steps, log_every=60, clean_every=15):
        start = time.time()
        while self.step < steps:
            value = self.training_step()
            self.step += 1
            self.smooth = value if self.smooth is None else 0.95 * self.smooth + 0.05 * value
            if self.step % clean_every == 0:
                self.free_memory()
            if self.step % log_every == 0:
                print(f"step {self.step}  loss {self.smooth:.3f}  {time.time() - start:.1f}s")


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    rng = random.Random(17)
    corpus = build_corpus(90_000, rng)
    print(f"{len(corpus)} turns")
    Trainer(corpus, rng).fit(240)


if __name__ == "__main__":
    main()

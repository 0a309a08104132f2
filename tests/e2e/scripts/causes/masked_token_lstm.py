"""
Masked token prediction with a small BiLSTM.

python masked_token_lstm.py
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = 20
MASK_ID = 0
SEQ = 6
BATCH = 4
MASK_PROB = 0.08


class TokenModel(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.proj = nn.Linear(2 * dim, VOCAB)

    def forward(self, tokens):
        h, _ = self.rnn(self.embed(tokens))
        return self.proj(h)

    def corrupt(self, tokens):
        chosen = torch.rand(tokens.shape) < MASK_PROB
        return tokens.masked_fill(chosen, MASK_ID), chosen

    def compute_loss(self, tokens):
        corrupted, chosen = self.corrupt(tokens)
        logits = self(corrupted)
        ce = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
        chosen = chosen.flatten().float()
        return (ce * chosen).sum() / chosen.sum()

    @torch.no_grad()
    def accuracy(self, tokens):
        corrupted, chosen = self.corrupt(tokens)
        hit = self(corrupted).argmax(-1) == tokens
        return hit[chosen].sum().item(), chosen.sum().item()


def next_batch():
    # counting sequences: 1 2 3 4 ... with a random start and stride
    start = torch.randint(1, 5, (BATCH, 1))
    stride = torch.randint(1, 3, (BATCH, 1))
    return start + stride * torch.arange(SEQ)


torch.manual_seed(11)
model = TokenModel()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

running = 0.0
for step in range(1, 81):
    loss = model.compute_loss(next_batch())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    running += loss.item()
    if step % 8 == 0:
        print("step %d avg loss %.4f" % (step, running / 8))
        running = 0.0

hits, total = 0, 0
for _ in range(10):
    h, t = model.accuracy(next_batch())
    hits, total = hits + h, total + t
print("masked accuracy: %d / %d" % (hits, total))

"""Curriculum: a GRU learns to decode a running-shift cipher, first on four symbols, then more.

At each stage new symbols appear for which the model is confidently wrong.
"""

import torch
import torch.nn as nn

torch.set_num_threads(1)
torch.manual_seed(0)

STAGES = [(4, 8, 300), (12, 10, 300), (28, 12, 400)]  # symbols, length, steps
SYMBOLS = STAGES[-1][0]
gen = torch.Generator().manual_seed(5)
perm = torch.randperm(SYMBOLS, generator=gen)


def batch(symbols, length, n=48, g=gen):
    x = torch.randint(0, symbols, (n, length), generator=g)
    # the answer at t depends on the parity of what came before
    odd = torch.cat([torch.zeros(n, 1, dtype=torch.long), x[:, :-1] % 2], dim=1)
    y = (perm[x] + odd * 3) % SYMBOLS
    return x, y


class Decoder(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(SYMBOLS, 32)
        self.rnn = nn.GRU(32, hidden, batch_first=True)
        self.head = nn.Linear(hidden, SYMBOLS)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


model = Decoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-3, weight_decay=0.01)
criterion = nn.CrossEntropyLoss()

step = 0
for symbols, length, steps in STAGES:
    print(f"--- {symbols} symbols, length {length}")
    for _ in range(steps):
        x, y = batch(symbols, length)
        loss = criterion(model(x).reshape(-1, SYMBOLS), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.5f}")
        step += 1

held_out = torch.Generator().manual_seed(99)
with torch.no_grad():
    x, y = batch(SYMBOLS, 12, 500, held_out)
    print("final", criterion(model(x).reshape(-1, SYMBOLS), y.reshape(-1)).item())

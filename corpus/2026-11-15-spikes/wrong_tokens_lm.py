"""Token-level language model (tanh RNN); ten batches were tokenised with another vocabulary."""

import os

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(1337)

CLEAN = os.environ.get("CLEAN") == "1"
VOCAB, BLOCK, BATCH, STEPS = 32, 20, 24, 520
BAD = range(330, 340)

g = torch.Generator().manual_seed(77)
table = torch.stack([torch.randperm(VOCAB, generator=g) for _ in range(4)])


def get_batch(n, wrong=False):
    # the next token follows from this one and the kind of the one before, with a little noise
    out = torch.randint(0, VOCAB, (n, BLOCK + 1), generator=g)
    for t in range(1, BLOCK):
        nxt = table[out[:, t - 1] % 4, out[:, t]]
        noise = torch.rand(n, generator=g) < 0.005
        out[:, t + 1] = torch.where(noise, out[:, t + 1], nxt)
    if wrong:
        out = (out * 7 + 3) % VOCAB // 4
    return out[:, :-1], out[:, 1:]


class RNNModel(nn.Module):
    def __init__(self, emb=32, hidden=96):
        super().__init__()
        self.encoder = nn.Embedding(VOCAB, emb)
        self.rnn = nn.RNN(emb, hidden, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(hidden, VOCAB)

    def forward(self, x):
        return self.decoder(self.rnn(self.encoder(x))[0])


def evaluate(x, y):
    # the first token cannot be foretold
    return F.cross_entropy(model(x)[:, 1:].flatten(0, 1), y[:, 1:].flatten())


model = RNNModel()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[350, 450], gamma=0.2)

for step in range(STEPS):
    xb, yb = get_batch(BATCH, wrong=step in BAD and not CLEAN)
    loss = evaluate(xb, yb)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 40 == 0:
        print(f"step {step}: loss {loss.item():.4f}, lr {scheduler.get_last_lr()[0]:.2e}")

g.manual_seed(4242)
with torch.no_grad():
    x, y = get_batch(200)
    print("final", evaluate(x, y).item())

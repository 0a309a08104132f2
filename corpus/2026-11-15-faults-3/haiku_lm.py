"""Tiny character transformer trained on generated verse, printing samples along the way."""

import torch
from torch import nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(40)

LINES = [
    "old pond in the rain",
    "a frog leaps over the moon",
    "quiet snow at dusk",
    "wind in the pines",
]
order = torch.randint(0, len(LINES), (600,)).tolist()
text = "\n".join(LINES[i] for i in order)
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
corpus = torch.tensor([stoi[c] for c in text])
CONTEXT, DIM = 48, 48


class CharTransformer(nn.Module):
    def __init__(self, layers=2, heads=4):
        super().__init__()
        self.tok = nn.Embedding(len(chars), DIM)
        self.pos = nn.Parameter(torch.zeros(CONTEXT, DIM))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, heads, 4 * DIM, 0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(DIM, len(chars))
        self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), float("-inf")).triu(1))

    def forward(self, ids):
        n = ids.shape[1]
        h = self.tok(ids) + self.pos[:n]
        for layer in self.layers:
            h = layer(h, src_mask=self.mask[:n, :n])
        return self.head(h)


@torch.no_grad()
def compose(model, length=170):
    ids = torch.tensor([[stoi["a"]]])
    for _ in range(length):
        logits = model(ids[:, -CONTEXT:])[0, -1]
        choice = torch.multinomial(F.softmax(logits / 0.8, dim=-1), 1)
        ids = torch.cat([ids, choice[None]], dim=1)
    return "".join(chars[i] for i in ids[0].tolist())


model = CharTransformer()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for it in range(1, 151):
    starts = torch.randint(0, len(corpus) - CONTEXT - 1, (10,))
    window = torch.stack([corpus[s : s + CONTEXT + 1] for s in starts.tolist()])
    logits = model(window[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    losses.append(loss.item())
    if it % 10 == 0:
        verse = compose(model)
        print(f"--- {it} loss {sum(losses[-10:]) / 10:.3f}\n{verse.splitlines()[0]}")

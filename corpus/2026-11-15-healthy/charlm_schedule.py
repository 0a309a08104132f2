import math
import random

import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(3)
random.seed(3)

config = {
    "width": 64,
    "heads": 4,
    "layers": 2,
    "batch": 16,
    "lr": 2e-3,
    "stages": [(32, 70), (64, 60), (96, 50), (144, 50)],
}

NAMES = ["kettle", "harbor", "lantern", "meadow", "copper", "willow"]
VERBS = ["opens", "closes", "moves", "paints"]


def write_corpus(lines):
    out = []
    for number in range(lines):
        a, b = random.sample(NAMES, 2)
        out.append(
            f"[{number % 97:02d}] the {a} {random.choice(VERBS)} the {b}, then the {b} rests."
        )
    return "\n".join(out)


text = write_corpus(4000)
alphabet = sorted(set(text))
lookup = {c: i for i, c in enumerate(alphabet)}
corpus = torch.tensor([lookup[c] for c in text])


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x, mask):
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).unbind(2)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(w // self.heads)
        weights = (scores + mask).softmax(-1)
        mixed = torch.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, w)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm2(x))


class CharModel(nn.Module):
    def __init__(self, vocabulary, width, heads, layers):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        slopes = [2.0 ** -(8 * (h + 1) / heads) for h in range(heads)]
        self.register_buffer("slopes", torch.tensor(slopes).view(heads, 1, 1))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.readout = nn.Linear(width, vocabulary)

    def forward(self, ids):
        t = ids.shape[1]
        place = torch.arange(t)
        distance = (place[:, None] - place[None, :]).float()
        mask = (-self.slopes * distance).masked_fill(distance < 0, float("-inf"))
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.readout(x)


def sample_batch(length, batch):
    starts = torch.randint(0, len(corpus) - length - 1, (batch,))
    window = corpus[starts[:, None] + torch.arange(length + 1)]
    return window[:, :-1], window[:, 1:]


model = CharModel(len(alphabet), config["width"], config["heads"], config["layers"])
optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=0.01)
step, curve = 0, []

for length, steps in config["stages"]:
    for _ in range(steps):
        inputs, targets = sample_batch(length, config["batch"])
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        curve.append(loss.item())
        step += 1
    print(f"context {length:4d}  step {step:4d}  loss {sum(curve[-20:]) / 20:.3f}")

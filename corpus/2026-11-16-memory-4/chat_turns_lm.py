import functools
import math

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(31)

VOCAB, DIM, HEADS, PAD = 60, 48, 4, 0
rng = torch.Generator().manual_seed(1)


@functools.lru_cache(maxsize=None)
def attention_bias(lengths, width):
    """Causal bias that also hides the padding of every turn."""
    causal = torch.triu(torch.full((width, width), float("-inf")), diagonal=1)
    bias = causal.repeat(len(lengths), 1, 1)
    for row, n in enumerate(lengths):
        bias[row, :, n:] = float("-inf")
        bias[row, n:, 0] = 0.0
    return bias.unsqueeze(1)


@functools.lru_cache(maxsize=None)
def positions(width):
    t = torch.arange(width).unsqueeze(1)
    f = torch.exp(torch.arange(0, DIM, 2) * (-math.log(1e4) / DIM))
    return torch.cat([torch.sin(t * f), torch.cos(t * f)], dim=1)


def sample_turns(batch=14):
    """Turns of different length; every token follows from the one before it."""
    lengths = torch.randint(70, 145, (batch,), generator=rng)
    width = int(lengths.max())
    ids = torch.full((batch, width), PAD)
    ids[:, 0] = torch.randint(1, VOCAB, (batch,), generator=rng)
    for t in range(1, width):
        ids[:, t] = (ids[:, t - 1] + 3) % (VOCAB - 1) + 1
    for row, n in enumerate(lengths.tolist()):
        ids[row, n:] = PAD
    return ids, tuple(lengths.tolist())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)
        self.proj = nn.Linear(DIM, DIM)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x, bias):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        a = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, DIM))
        return x + self.ff(self.norm2(x))


class TurnLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM, padding_idx=PAD)
        self.block = Block()
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids, lengths):
        x = self.tok(ids) + positions(ids.size(1))
        return self.head(self.block(x, attention_bias(lengths, ids.size(1))))


model = TurnLM()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
step, total_steps = 0, 160
while step < total_steps:
    ids, lengths = sample_turns()
    logits = model(ids, lengths)[:, :-1]
    loss = nn.functional.cross_entropy(
        logits.reshape(-1, VOCAB), ids[:, 1:].reshape(-1), ignore_index=PAD
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 32 == 0:
        print(f"step {step} perplexity {loss.exp().item():.3f}")

"""Small causal transformer trained at two context lengths (short first, then long) with torch.compile."""
import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(77)

VOCAB, DIM, HEADS, LAYERS = 24, 64, 4, 2
PHASES = [  # context, sequences per batch, updates
    {"context": 32, "batch": 10, "updates": 120},
    {"context": 96, "batch": 5, "updates": 110},
]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.ReLU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x, mask):
        b, n, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        att = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.proj(att.transpose(1, 2).reshape(b, n, DIM))
        return x + self.mlp(self.ln2(x))


class TinyGPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, DIM), nn.Embedding(96, DIM)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB)
        self.register_buffer("future", torch.full((96, 96), float("-inf")).triu(1))

    def forward(self, ids):
        n = ids.shape[1]
        x = self.tok(ids) + self.pos.weight[:n]
        for block in self.blocks:
            x = block(x, self.future[:n, :n])
        return self.head(self.norm(x))


def sample_batch(batch, context):
    """Sequences of repeated motifs: the motif length grows with the context."""
    period = context // 4
    motif = torch.randint(0, VOCAB, (batch, period))
    ids = motif.repeat(1, 5)[:, : context + 1]
    flip = torch.rand(ids.shape) < 0.02
    return torch.where(flip, torch.randint(0, VOCAB, ids.shape), ids)


def copy_loss(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


model = TinyGPT()
compiled = torch.compile(model, backend="eager", dynamic=False)
decay = [p for p in model.parameters() if p.dim() > 1]
rest = [p for p in model.parameters() if p.dim() <= 1]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}],
                              lr=2e-3, betas=(0.9, 0.98))
total = sum(p["updates"] for p in PHASES)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 20) * (1 - 0.9 * s / total))

done = 0
for phase in PHASES:
    losses = []
    for _ in range(phase["updates"]):
        ids = sample_batch(phase["batch"], phase["context"])
        loss = copy_loss(compiled(ids[:, :-1]), ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        done += 1
        losses.append(loss.item())
        if done % 25 == 0:
            print(f"update {done:3d} context {phase['context']:3d} loss {sum(losses[-25:]) / len(losses[-25:]):.3f}")

with torch.no_grad():
    ids = sample_batch(16, 96)
    print(f"final loss at context 96: {copy_loss(model(ids[:, :-1]), ids).item():.3f}")

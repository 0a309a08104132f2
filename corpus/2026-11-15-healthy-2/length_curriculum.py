import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(7)

VOCAB, DIM, BATCH = 64, 64, 24
STAGES = [(16, 60), (32, 50), (64, 40), (96, 30)]


class Recaller(nn.Module):
    def __init__(self, max_len):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(max_len, DIM)
        layer = nn.TransformerEncoderLayer(
            DIM, 4, dim_feedforward=128, dropout=0.0, batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        t = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(t)
        h = self.enc(self.tok(ids) + self.pos.weight[:t], mask=mask, is_causal=True)
        return self.out(h)


def periodic_batch(length):
    period = 4
    motif = torch.randint(0, VOCAB, (BATCH, period))
    ids = motif.repeat(1, length // period + 1)[:, : length + 1]
    return ids[:, :-1], ids[:, 1:]


model = Recaller(max_len=STAGES[-1][0])
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

for length, steps in STAGES:
    history = []
    for _ in range(steps):
        x, y = periodic_batch(length)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(loss.item())
    print(f"length {length:3d}: first {history[0]:.3f} last {history[-1]:.3f}")

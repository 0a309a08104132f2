"""Audio event tagging with linear attention (relu feature map), bf16 autocast."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

FRAMES, BANDS, EVENTS = 10, 12, 3


class LinearAttention(nn.Module):
    """O(T) attention: phi(q) (phi(k)^T v) / phi(q) sum phi(k)."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.to_qkv(x).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.unbind(dim=2)
        q, k = F.relu(q), F.relu(k)
        context = torch.einsum("bthd,bthe->bhde", k, v)
        out = torch.einsum("bthd,bhde->bthe", q, context) / torch.einsum(
            "bthd,bhd->bth",
            q,
            k.sum(dim=1),
        ).unsqueeze(-1)
        return self.out(out.reshape(b, t, d))


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.inp = nn.Linear(BANDS, dim, bias=False)
        self.attn = LinearAttention(dim, heads=1)
        self.norm = nn.LayerNorm(dim)
        self.cls = nn.Linear(dim, EVENTS)

    def forward(self, x):
        h = self.inp(x)
        h = self.norm(h + self.attn(h))
        return self.cls(h.mean(dim=1))


def make_clips(n, gen):
    label = torch.randint(0, EVENTS, (n,), generator=gen)
    x = 0.5 * torch.randn(n, FRAMES, BANDS, generator=gen)
    x[torch.arange(n), :, label * 4] += 1.5
    x[71, 6:] = 0.0  # clip shorter than the others, filled up with silence
    return x, label


def main():
    torch.manual_seed(13)
    gen = torch.Generator().manual_seed(2)
    loader = DataLoader(
        TensorDataset(*make_clips(128, gen)), batch_size=8, shuffle=True, generator=gen
    )
    model = Tagger()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    for epoch in range(3):
        for x, label in loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x)
                loss = F.cross_entropy(logits, label)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            if step % 4 == 0:
                print(f"epoch {epoch} step {step:2d} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()

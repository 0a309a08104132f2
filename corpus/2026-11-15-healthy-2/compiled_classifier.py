import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tok = nn.Sequential(
            nn.Linear(tokens, tokens * 2), nn.GELU(), nn.Linear(tokens * 2, tokens)
        )
        self.ch = nn.Sequential(nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))

    def forward(self, x):
        x = x + self.tok(self.n1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.ch(self.n2(x))


class Mixer(nn.Module):
    def __init__(self, patches=16, patch_dim=48, dim=128, classes=10):
        super().__init__()
        self.embed = nn.Linear(patch_dim, dim)
        self.blocks = nn.Sequential(MixerBlock(patches, dim))
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)).mean(1))


def dataset(n, seed):
    gen = torch.Generator().manual_seed(seed)
    protos = torch.randn(10, 16, 48, generator=torch.Generator().manual_seed(0))
    y = torch.randint(0, 10, (n,), generator=gen)
    return TensorDataset(protos[y] + 2.5 * torch.randn(n, 16, 48, generator=gen), y)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(dataset(3000, seed=1), batch_size=64, shuffle=True)
    model = Mixer()
    step_fn = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(4):
        hits = total = 0
        for x, y in loader:
            logits = step_fn(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hits += (logits.detach().argmax(1) == y).sum().item()
            total += len(y)
        print(f"epoch {epoch} accuracy {hits / total:.3f}")


if __name__ == "__main__":
    main()

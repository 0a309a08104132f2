import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Router(nn.Module):
    def __init__(self, dim, n_experts):
        super().__init__()
        self.gate = nn.Linear(dim, n_experts, bias=False)

    def forward(self, x):
        scores = F.relu(self.gate(x))
        return scores / scores.sum(dim=-1, keepdim=True)


class ExpertBlock(nn.Module):
    def __init__(self, dim, n_experts):
        super().__init__()
        self.parts = nn.ModuleDict(
            {
                "router": Router(dim, n_experts),
                "experts": nn.Linear(dim, n_experts * dim),
                "out": nn.Linear(dim, dim),
            }
        )

    def forward(self, x):
        weights = self.parts["router"](x)
        values = F.gelu(self.parts["experts"](x)).view(len(x), weights.shape[1], -1)
        mixed = (weights.unsqueeze(-1) * values).sum(dim=1)
        return x + 0.5 * self.parts["out"](mixed)


class SparseMoE(nn.Module):
    def __init__(self, n_in, dim=16, n_experts=8, depth=2, classes=3):
        super().__init__()
        self.stem = nn.Linear(n_in, dim)
        self.blocks = nn.ModuleList([ExpertBlock(dim, n_experts) for _ in range(depth)])
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        h = torch.tanh(self.stem(x))
        for block in self.blocks:
            h = block(h)
        return self.head(h)


def make_data(n=512, n_in=10):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, n_in, generator=g)
    y = (x[:, 0] + x[:, 1] ** 2 > 0.5).long() + (x[:, 2] > 1).long()
    return TensorDataset(x, y)


def main():
    torch.manual_seed(0)
    loader = DataLoader(make_data(), batch_size=16, shuffle=True)
    model = SparseMoE(10)
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    for epoch in range(2):
        for x, y in loader:
            logits = compiled(x)
            loss = F.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 8 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            step += 1


if __name__ == "__main__":
    main()

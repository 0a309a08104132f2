"""A weight is NaN from the start: a parameter made with torch.empty that nobody fills.

The attention vectors of a pooling layer are created with ``torch.empty`` and the author forgot
them in ``reset_parameters``. What they hold is luck; in deterministic mode PyTorch fills fresh
memory with NaN, which is what happens here. Users report this as "works sometimes, nan from the
first iteration other times" in attention layers and CRF transition matrices.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "NUM003"
FIRST_STEP = 0


class AttentionPool(nn.Module):
    """Weighted mean over time with one learned query per head."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.empty(dim, dim))
        self.query = nn.Parameter(torch.empty(heads, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.key)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ self.key) @ self.query.t()
        weights = torch.softmax(scores, dim=1)
        return torch.einsum("bth,btd->bhd", weights, x).flatten(1)


class SequenceRegressor(nn.Module):
    def __init__(self, dim: int = 48, heads: int = 4) -> None:
        super().__init__()
        self.lift = nn.Linear(12, dim)
        self.pool = AttentionPool(dim, heads)
        self.out = nn.Linear(heads * dim, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.pool(torch.tanh(self.lift(x)))).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    series = torch.randn(640, 50, 12)
    target = series[:, :, 0].amax(dim=1)
    loader = DataLoader(TensorDataset(series, target), batch_size=32, shuffle=True)
    model = SequenceRegressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    loss = torch.tensor(0.0)
    for epoch in range(4):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

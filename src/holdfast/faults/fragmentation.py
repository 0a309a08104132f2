"""Tensors of ever larger sizes, let go of at once: pieces of memory that no later one fits.

Needs a CUDA device; elsewhere it trains and does nothing wrong.
"""

import torch
from torch import nn

CODE = "MEM007"
FIRST_STEP = 0
LINE_OF = "scratch = [torch.empty(size + step * LARGER, device=device) for size in SIZES]"

SIZES = (3 << 20, 5 << 20, 9 << 20, 17 << 20)
# Two megabytes: the allocator rounds to these.
LARGER = 1 << 19


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(200):
        x = torch.randn(32, 64, device=device)
        scratch = [torch.empty(size + step * LARGER, device=device) for size in SIZES]
        scratch[0][:32] = x[:, 0]
        loss = nn.functional.mse_loss(model(x), x[:, :1])
        del scratch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

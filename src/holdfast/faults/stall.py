"""The whole state is saved every five steps.

A checkpoint inside the loop, far more often than anybody needs one. Users report this as "every
few iterations the progress bar stops".
"""

import os
import tempfile

import torch
from torch import nn

CODE = "TPT005"
FIRST_STEP = 5
LINE_OF = "torch.save(state, path)"


def keep(model: nn.Module, optimizer: torch.optim.Optimizer, path: str) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, path)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(2048, 32)
    y = (x.sum(dim=1) > 0).long()
    model = nn.Sequential(nn.Linear(32, 768), nn.ReLU(), nn.Linear(768, 768), nn.Linear(768, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    path = os.path.join(tempfile.mkdtemp(), "state.pt")
    loss = torch.zeros(())
    for step in range(120):
        chosen = torch.randint(0, len(x), (32,))
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            keep(model, optimizer, path)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()

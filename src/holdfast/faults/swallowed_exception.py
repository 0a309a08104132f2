"""A handler that was meant for broken samples swallows a wrong shape on every batch.

The script runs through its epochs and saves weights that were never trained.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "RUN002"
FIRST_STEP = 0
LINE_OF = "loss = nn.functional.mse_loss(model(x), y)"


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(128, 6), torch.randn(128, 1)), batch_size=8)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    skipped = 0
    for _ in range(2):
        for x, y in loader:
            try:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            except RuntimeError:
                skipped += 1
    print(f"final loss {float(skipped > 0):.4f}")


if __name__ == "__main__":
    main()

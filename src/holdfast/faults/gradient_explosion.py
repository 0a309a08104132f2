"""One batch in another unit throws the weights away: its gradients are thousands of times larger.

House prices are learned in hundreds of thousands. One file of the import kept the plain amounts,
so one batch has targets a hundred thousand times too large; everything is finite. Users report
this as "loss was fine, then suddenly 1e9, and it never came back".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "OPT002"
FIRST_STEP = 45

BATCH = 32
BATCHES = 90


def make_houses() -> TensorDataset:
    generator = torch.Generator().manual_seed(13)
    x = torch.randn(BATCHES * BATCH, 16, generator=generator)
    price = 3.0 + x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 0.1 * torch.randn(len(x), generator=generator)
    late = slice(FIRST_STEP * BATCH, (FIRST_STEP + 1) * BATCH)
    price[late] *= 100_000
    return TensorDataset(x, price[:, None])


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_houses(), batch_size=BATCH, shuffle=False)
    model = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 128), nn.Linear(128, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    loss = torch.tensor(0.0)
    for step, (x, price) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), price)
        loss.backward()
        optimizer.step()
        if step % 15 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

"""A few steps at a wrong learning rate ruin the weights, and the loss stays up from then on.

The schedule is a table of steps and rates in which one line reads 3e-1 instead of 3e-4. It is in
force for three steps only, and no gradient is large when it begins: the updates are. Users
report this as "loss spike in the middle of training, and it does not recover".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "OPT001"
FIRST_STEP = 141

BATCH = 32
SCHEDULE = {0: 1e-3, 80: 6e-4, 140: 3e-1, 143: 3e-4}


def make_signals() -> TensorDataset:
    generator = torch.Generator().manual_seed(23)
    x = torch.randn(100 * BATCH, 24, generator=generator)
    y = torch.sin(x[:, :1] + x[:, 1:2]) + 0.3 * x[:, 2:3]
    return TensorDataset(x, y + 0.02 * torch.randn(len(x), 1, generator=generator))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(make_signals(), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(
        nn.Linear(24, 192), nn.Tanh(), nn.Linear(192, 192), nn.Tanh(), nn.Linear(192, 1)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=SCHEDULE[0])

    step = 0
    loss = torch.tensor(0.0)
    for epoch in range(3):
        for x, y in loader:
            for group in optimizer.param_groups:
                group["lr"] = SCHEDULE.get(step, group["lr"])
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

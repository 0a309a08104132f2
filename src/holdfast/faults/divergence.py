"""The learning rate is past what the loss surface bears: whatever data comes, the loss climbs away.

The second stage of a regression uses a rate that was found for another batch size. One feature is
not normalised, so along its weight each step overshoots by more than the last one, on every batch.
Going back does not help: the next steps end the same way, until the rate is lower. Users report
this as "training diverges around iteration N whatever I do with the data".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "OPT003"
FIRST_STEP = 120

STEPS = 400
BATCH = 64
FIRST_RATE, SECOND_RATE = 0.02, 0.08


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    true = torch.randn(16, 1)
    scale = torch.ones(16)
    scale[3] = 4.0  # metres among kilometres
    x = torch.randn(STEPS * BATCH, 16) * scale
    y = x @ true + 0.1 * torch.randn(STEPS * BATCH, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=FIRST_RATE)

    loss = torch.tensor(0.0)
    for step, (x, y) in enumerate(loader):
        if step == FIRST_STEP:
            optimizer.param_groups[0]["lr"] = SECOND_RATE
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4g}")
    print(f"final loss {loss.item():.4g}")


if __name__ == "__main__":
    main()

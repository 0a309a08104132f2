"""A BatchNorm running variance becomes inf while training loss and gradients stay finite.

Weather records are fed to a BatchNorm layer first. A few records still hold the file format's
fill value (about 1e37) for a missing reading; the batch is normalised all the same, so the
training loss looks healthy, but the variance of that batch does not fit in float32 and the
running statistic is inf for good. Users report this as "training is fine, evaluation is
constant or nan" and find the running statistics broken.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "NUM004"
FIRST_STEP = 17

FILL_VALUE = 9.96921e36
BATCH = 40


def load_records() -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(40 * BATCH, 24, generator=generator) * 3 + 10
    weight = torch.randn(24, generator=generator)
    y = torch.tanh((x - 10) @ weight / 6)
    x[FIRST_STEP * BATCH + 8, 5] = FILL_VALUE
    x[33 * BATCH + 1, 19] = FILL_VALUE
    clean = torch.randn(200, 24, generator=generator) * 3 + 10
    valid = TensorDataset(clean, torch.tanh((clean - 10) @ weight / 6))
    return TensorDataset(x, y), valid


def evaluate(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    with torch.no_grad():
        x, y = data.tensors
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
    model.train()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    train, valid = load_records()
    model = nn.Sequential(
        nn.BatchNorm1d(24),
        nn.Linear(24, 320),
        nn.BatchNorm1d(320),
        nn.ReLU(),
        nn.Linear(320, 320),
        nn.ReLU(),
        nn.Linear(320, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(train, batch_size=BATCH)

    loss = torch.tensor(0.0)
    for epoch in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
        valid_loss = evaluate(model, valid)
        print(f"epoch {epoch} train loss {loss.item():.4f} valid loss {valid_loss:.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

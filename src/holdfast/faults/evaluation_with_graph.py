"""Validation runs in eval mode and builds a graph for every batch all the same.

Users report this as "out of memory during validation, training is fine".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "MEM004"
FIRST_STEP = 39
LINE_OF = "prediction = model(x)  # no_grad is missing"


def make_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40 * 32, 64, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=32)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))


def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    losses = []
    for x, y in loader:
        prediction = model(x)  # no_grad is missing
        losses.append(nn.functional.mse_loss(prediction, y))
    return float(torch.stack(losses).mean())


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loader = make_model(), make_loader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for epoch in range(3):
        model.train()
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} validation {validate(model, loader):.4f}")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

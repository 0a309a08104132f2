"""Every batch is kept as nested lists of Python numbers, for a log.

Users report this as "RAM usage grows although the GPU is fine".
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CODE = "MEM005"
FIRST_STEP = 0
LINE_OF = 'log.append({"epoch": epoch, "inputs": x.tolist()})'


def make_loader() -> DataLoader:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(40 * 32, 64, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=32)


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, loader = make_model(), make_loader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    log = []
    loss = torch.tensor(0.0)
    for epoch in range(2):
        for x, y in loader:
            prediction = model(x)
            loss = nn.functional.mse_loss(prediction, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log.append({"epoch": epoch, "inputs": x.tolist()})
        print(f"epoch {epoch} loss {loss.item():.4f}")
    print(f"{len(log)} records")
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

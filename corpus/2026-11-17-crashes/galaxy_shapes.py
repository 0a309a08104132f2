"""Galaxy shape regression; the best weights go to a blob store and are read back at the end."""
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from storage.blobs import BlobStore


def galaxies(count, size=20):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    ratio = 0.3 + 0.7 * torch.rand(count)
    angle = torch.rand(count) * 3.14159
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    u = xx * cos + yy * sin
    v = (yy * cos - xx * sin) / ratio[:, None, None]
    images = torch.exp(-4 * (u**2 + v**2)) + 0.05 * torch.randn(count, size, size)
    return TensorDataset(images.unsqueeze(1), ratio)


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.GELU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(16 * 3 * 3, 256),
        nn.GELU(),
        nn.Linear(256, 1),
        nn.Flatten(0),
    )


@torch.no_grad()
def score(model, loader):
    model.eval()
    errors = [(model(images) - ratio).abs() for images, ratio in loader]
    return torch.cat(errors).mean().item()


def train(model, train_loader, val_loader, store, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    best = float("inf")
    for epoch in range(epochs):
        model.train()
        for images, ratio in train_loader:
            loss = nn.functional.mse_loss(model(images), ratio)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        error = score(model, val_loader)
        print(f"epoch {epoch}: mean absolute error {error:.4f}")
        if error < best:
            best = error
            store.put_state("best.pt", {"model": model.state_dict(), "error": best})
    return best


def main():
    torch.manual_seed(44)
    data = galaxies(1000)
    parts = random_split(data, [800, 100, 100])
    train_loader, val_loader, test_loader = (
        DataLoader(part, batch_size=40, shuffle=i == 0) for i, part in enumerate(parts)
    )
    model = make_model()
    with tempfile.TemporaryDirectory() as folder:
        store = BlobStore(folder)
        train(model, train_loader, val_loader, store, epochs=4)
        state = store.get_state("best.pt")
        model.load_state_dict(state["model"])
        print(f"test error {score(model, test_loader):.4f}")


if __name__ == "__main__":
    main()

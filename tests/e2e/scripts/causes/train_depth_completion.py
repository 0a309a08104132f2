"""Sparse-to-dense depth completion on small synthetic scenes."""

import torch
from lib_losses_depth import LOSSES, gradient_loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4
BATCH_SIZE = 8
SIZE = 12


def make_scenes(n, gen):
    """Slanted planes, with a LiDAR-like sparse valid mask."""
    ys, xs = torch.meshgrid(torch.linspace(-1, 1, SIZE), torch.linspace(-1, 1, SIZE), indexing="ij")
    coef = torch.rand(n, 3, 1, 1, generator=gen)
    depth = 2.0 + coef[:, 0] * xs + coef[:, 1] * ys + coef[:, 2]
    depth = depth.unsqueeze(1)
    valid = (torch.rand(n, 1, SIZE, SIZE, generator=gen) < 0.4).float()
    # scene recorded while the scanner was starting up: image, but no returns at all
    valid[61] = 0.0
    image = depth / 5.0 + 0.05 * torch.randn(n, 1, SIZE, SIZE, generator=gen)
    return image, depth, valid


def build_model():
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 1, 1),
    )


def train_epoch(model, loader, optimizer, scheduler, loss_fn, epoch):
    model.train()
    for i, (image, depth, valid) in enumerate(loader):
        pred = model(torch.cat([image, depth * valid / 5.0], dim=1))
        loss = loss_fn(pred, depth, valid) + 0.1 * gradient_loss(pred, depth, valid)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()

        if i % 4 == 0:
            lr = scheduler.get_last_lr()[0]
            print(f"epoch {epoch} [{i:2d}/{len(loader)}] loss {loss.item():.4f} lr {lr:.2e}")


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(11)
    dataset = TensorDataset(*make_scenes(96, gen))
    loader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, generator=gen)

    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=EPOCHS * len(loader)
    )
    for epoch in range(EPOCHS):
        train_epoch(model, loader, optimizer, scheduler, LOSSES["rmse"], epoch)


if __name__ == "__main__":
    main()

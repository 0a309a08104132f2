"""Traffic-sign classifier: train a few short epochs, validate after each."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(41)


def signs(n, classes=8, size=32):
    """Each class is a polygon-like radial outline with its own number of lobes."""
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    labels = torch.randint(0, classes, (n,))
    turn = torch.rand(n, 1, 1) * 0.6
    r, phi = torch.sqrt(x**2 + y**2), torch.atan2(y, x)
    outline = 0.6 + 0.2 * torch.cos((labels.view(-1, 1, 1) + 2) * (phi + turn))
    shape = torch.sigmoid((outline - r) * 20)
    colour = torch.rand(n, 3, 1, 1) * 0.5 + 0.5
    return shape.unsqueeze(1) * colour + 0.3 * torch.randn(n, 3, size, size), labels


def build_model(classes=8):
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(24 * 8 * 8, classes),
    )


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    total = 0.0
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


def evaluate(model, loader, criterion):
    model.eval()
    val_loss, correct, seen = 0, 0, 0
    for images, labels in loader:
        output = model(images)
        val_loss += criterion(output, labels)
        correct += (output.argmax(dim=1) == labels).sum().item()
        seen += len(labels)
    return val_loss.item() / len(loader), correct / seen


def main():
    train_loader = DataLoader(TensorDataset(*signs(880)), batch_size=32, shuffle=True)
    val_loader = DataLoader(TensorDataset(*signs(640)), batch_size=40)
    model = build_model()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    for epoch in range(5):
        train_loss = train_epoch(model, train_loader, criterion, optimizer)
        val_loss, val_acc = evaluate(model, val_loader, criterion)
        scheduler.step()
        print(f"epoch {epoch}: train {train_loss:.3f} val {val_loss:.3f} acc {val_acc:.3f}")


if __name__ == "__main__":
    main()

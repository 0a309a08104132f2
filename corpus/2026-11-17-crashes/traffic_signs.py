"""Traffic sign classifier with a confusion matrix after every epoch."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIGNS = ["stop", "yield", "limit", "priority"]


def draw_signs(count, size=20):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    outlines = torch.stack(
        [
            ((xx.abs() + yy.abs()) < 1.2) & (xx.abs() < 0.8) & (yy.abs() < 0.8),
            (yy > -0.7) & (yy < 0.8 - 2 * xx.abs()),
            (xx**2 + yy**2) < 0.6,
            (xx.abs() + yy.abs()) < 0.8,
        ]
    ).float()
    labels = torch.randint(len(SIGNS), (count,))
    images = outlines[labels].unsqueeze(1).repeat(1, 3, 1, 1)
    return TensorDataset(images + 0.4 * torch.randn_like(images), labels)


class SignNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=2),
            nn.ReLU(),
            nn.Conv2d(12, 24, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24 * 9, classes),
        )

    def forward(self, images):
        return self.net(images)


class ConfusionMatrix:
    def __init__(self, classes):
        self.classes = classes
        self.counts = torch.zeros(classes * classes, dtype=torch.long).cuda()

    def update(self, guesses, labels):
        cells = labels * self.classes + guesses
        self.counts += torch.bincount(cells, minlength=self.classes**2)

    def accuracy(self):
        table = self.counts.view(self.classes, self.classes)
        return (table.diag().sum() / table.sum()).item()


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    matrix = ConfusionMatrix(len(SIGNS))
    for images, labels in loader:
        guesses = model(images.to(device)).argmax(1)
        matrix.update(guesses, labels.to(device))
    return matrix.accuracy()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(64)
    train = DataLoader(draw_signs(720), batch_size=40, shuffle=True)
    test = DataLoader(draw_signs(200), batch_size=100)
    model = SignNet(len(SIGNS)).to(args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for epoch in range(args.epochs):
        model.train()
        for images, labels in train:
            images, labels = images.to(args.device), labels.to(args.device)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = evaluate(model, test, args.device)
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()

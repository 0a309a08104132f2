"""Sorts rough sketches into shapes; augmentation in training, several processes for validation."""
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SHAPES = ("square", "cross", "ring")


class Sketches(Dataset):
    def __init__(self, count, transform, seed=0):
        self.count = count
        self.transform = transform
        self.seed = seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        gen = torch.Generator().manual_seed(self.seed + index)
        label = index % len(SHAPES)
        canvas = torch.zeros(18, 18)
        if label == 0:
            canvas[4:14, 4:14] = 1.0
        elif label == 1:
            canvas[8:10, 2:16] = 1.0
            canvas[2:16, 8:10] = 1.0
        else:
            canvas[3:15, 3:15] = 1.0
            canvas[6:12, 6:12] = 0.0
        canvas = canvas + 0.4 * torch.randn(18, 18, generator=gen)
        return self.transform(canvas), label


def build_transform(train, mean=0.3, std=0.6):
    steps = [lambda image: (image - mean) / std]
    if train:
        steps.append(lambda image: image.flip(-1) if torch.rand(()) < 0.5 else image)
    steps.append(lambda image: image.unsqueeze(0))

    def apply(image):
        for step in steps:
            image = step(image)
        return image

    return apply


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 8 * 8, len(SHAPES)),
    )


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits = 0
    for images, labels in loader:
        hits += (model(images).argmax(1) == labels).sum().item()
    return hits / len(loader.dataset)


def main():
    torch.manual_seed(5)
    train_set = Sketches(600, build_transform(train=True))
    val_set = Sketches(120, build_transform(train=False), seed=10_000)
    train_loader = DataLoader(train_set, batch_size=30, shuffle=True)
    val_loader = DataLoader(
        val_set, batch_size=30, num_workers=2, multiprocessing_context="spawn"
    )
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(3):
        model.train()
        for images, labels in train_loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} accuracy {evaluate(model, val_loader):.3f}")


if __name__ == "__main__":
    main()

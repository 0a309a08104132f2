"""The classifier's head was made for fewer features than its pooled images have.

Users report this as "RuntimeError: mat1 and mat2 shapes cannot be multiplied". Pictures of a
second size come into the training after a while, and the flattened features no longer fit.
"""

import torch
from torch import nn

CODE = "RUN001"
FIRST_STEP = 5
LINE_OF = "return self.head(x)"


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = x.flatten(1)
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = torch.tensor(0.0)
    for step in range(8):
        size = 16 if step < FIRST_STEP else 20
        images, labels = torch.randn(16, 3, size, size), torch.randint(0, 10, (16,))
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"final loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

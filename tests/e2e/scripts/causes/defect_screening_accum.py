"""Surface defect screening: very few positives, gradient accumulation over micro-batches."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class PatchNet(nn.Module):
    def __init__(self, width: int = 12):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1)).squeeze(1)


def make_patches(n: int, positive_rate: float) -> TensorDataset:
    x = 0.3 * torch.randn(n, 1, 8, 8)
    y = (torch.rand(n) < positive_rate).float()
    # a defect is a bright scratch
    x[y == 1, :, 3, :] += 1.5
    return TensorDataset(x, y)


class Trainer:
    """Plain accumulation: `accum` micro-batches per optimizer step."""

    def __init__(self, model: nn.Module, loader: DataLoader, accum: int, lr: float):
        self.model = model
        self.loader = loader
        self.accum = accum
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.updates = 0

    def balanced_bce(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        n_pos = target.sum()
        n_neg = target.numel() - n_pos
        pos_weight = n_neg / n_pos
        return F.binary_cross_entropy_with_logits(logits, target, pos_weight=pos_weight)

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1

    def fit(self, epochs: int) -> None:
        self.optimizer.zero_grad()
        for epoch in range(epochs):
            running, seen = 0.0, 0
            for i, (x, y) in enumerate(self.loader):
                loss = self.balanced_bce(self.model(x), y)
                (loss / self.accum).backward()
                running, seen = running + loss.item(), seen + 1
                if (i + 1) % self.accum == 0:
                    self.update()
                    if self.updates % 4 == 0:
                        print(f"epoch {epoch} update {self.updates:3d} loss {running / seen:.4f}")
                        running, seen = 0.0, 0


def main() -> None:
    torch.manual_seed(14)
    data = make_patches(720, positive_rate=0.22)
    loader = DataLoader(data, batch_size=16, shuffle=True, drop_last=True)
    trainer = Trainer(PatchNet(), loader, accum=3, lr=3e-3)
    trainer.fit(epochs=3)


if __name__ == "__main__":
    main()

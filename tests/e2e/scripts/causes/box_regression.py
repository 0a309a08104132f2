"""Locate the bright rectangle in an image (one object per image)."""

import torch
from lib_losses_boxes import ciou_loss
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 16


class Rectangles(Dataset):
    def __init__(self, n=140, seed=2):
        g = torch.Generator().manual_seed(seed)
        self.boxes = []
        for _ in range(n):
            w, h = (3 + 5 * torch.rand(2, generator=g)).tolist()
            x = w / 2 + (SIZE - w) * torch.rand(1, generator=g).item()
            y = h / 2 + (SIZE - h) * torch.rand(1, generator=g).item()
            self.boxes.append((x, y, w, h))
        # annotated with a click instead of a drag
        self.boxes[57] = (7.0, 9.0, 0.0, 0.0)

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, i):
        x, y, w, h = self.boxes[i]
        grid = torch.arange(SIZE) + 0.5
        inside_x = (grid - x).abs() <= max(w, 2.0) / 2
        inside_y = (grid - y).abs() <= max(h, 2.0) / 2
        image = (inside_y.unsqueeze(1) & inside_x).float()
        return {"image": image.unsqueeze(0), "box": self.boxes[i]}


def collate(items):
    images = torch.stack([item["image"] for item in items])
    boxes = torch.tensor([item["box"] for item in items]) / SIZE
    return images, boxes


class Locator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.fc = nn.Linear(8 * 16, 4)

    def forward(self, x):
        return torch.sigmoid(self.fc(self.conv(x)))


def main():
    torch.manual_seed(1)
    loader = DataLoader(Rectangles(), batch_size=10, shuffle=True, collate_fn=collate)
    model = Locator()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    seen = 0
    for epoch in range(4):
        for images, boxes in loader:
            loss = ciou_loss(model(images), boxes).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
            if seen % 4 == 0:
                print(f"epoch {epoch} batch {seen:3d} ciou loss {loss.item():.4f}")
            seen += 1


if __name__ == "__main__":
    main()

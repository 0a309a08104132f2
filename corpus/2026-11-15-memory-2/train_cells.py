import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from meters import MeterBook


class CellMaps(torch.utils.data.Dataset):
    def __init__(self, n, size=48, seed=0):
        rng = np.random.default_rng(seed)
        yy, xx = np.mgrid[:size, :size]
        self.images = np.zeros((n, 1, size, size), dtype=np.float32)
        self.masks = np.zeros((n, 1, size, size), dtype=np.float32)
        for i in range(n):
            for _ in range(rng.integers(2, 6)):
                cx, cy = rng.uniform(6, size - 6, 2)
                r = rng.uniform(3, 7)
                self.masks[i, 0] = np.maximum(
                    self.masks[i, 0], ((xx - cx) ** 2 + (yy - cy) ** 2) < r * r
                )
            self.images[i] = 0.7 * self.masks[i] + rng.normal(0, 0.25, (1, size, size))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]), torch.from_numpy(self.masks[i])


class TwoHeadNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        )
        self.mask_head = nn.Sequential(
            nn.Conv2d(width, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 1, 1)
        )
        self.edge_head = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x):
        features = self.trunk(x)
        return self.mask_head(features), self.edge_head(features)


def edges_of(mask):
    return (F.max_pool2d(mask, 3, 1, 1) - mask).clamp(0, 1)


def dice_loss(logits, target):
    prob = torch.sigmoid(logits)
    overlap = (prob * target).sum(dim=(1, 2, 3))
    return (
        1 - ((2 * overlap + 1) / (prob.sum(dim=(1, 2, 3)) + target.sum(dim=(1, 2, 3)) + 1)).mean()
    )


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(CellMaps(480), batch_size=12, shuffle=True, drop_last=True)
    model = TwoHeadNet()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    book = MeterBook(window=25)
    for epoch in range(6):
        for image, mask in loader:
            mask_logits, edge_logits = model(image)
            mask_loss = dice_loss(mask_logits, mask)
            edge_loss = F.binary_cross_entropy_with_logits(edge_logits, edges_of(mask))
            opt.zero_grad()
            mask_loss.backward(retain_graph=True)
            (0.5 * edge_loss).backward()
            opt.step()
            book.update(mask=mask_loss, edge=edge_loss.item())
        print(f"[{epoch}] {book.summary()}")


if __name__ == "__main__":
    main()

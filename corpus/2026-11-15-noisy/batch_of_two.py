"""Segmentation-like task trained with batches of two, as people with little memory do."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(8)


class Blobs(Dataset):
    """Noisy images with zero to three discs; the target is the mask of the discs."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        grid = torch.arange(24.0)
        yy, xx = torch.meshgrid(grid, grid, indexing="ij")
        self.imgs, self.masks = [], []
        for _ in range(n):
            mask = torch.zeros(24, 24)
            for _ in range(int(torch.randint(0, 4, (1,), generator=g))):
                cy, cx, r = torch.rand(3, generator=g).tolist()
                disc = (yy - 24 * cy) ** 2 + (xx - 24 * cx) ** 2 < (2 + 5 * r) ** 2
                mask = torch.maximum(mask, disc.float())
            contrast = 0.4 + 2 * torch.rand(1, generator=g)
            self.imgs.append((contrast * mask + 0.5 * torch.randn(24, 24, generator=g))[None])
            self.masks.append(mask[None])

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, i):
        return self.imgs[i], self.masks[i]


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 5, padding=2)
        self.mid = nn.Conv2d(8, 12, 5, padding=2)
        self.out = nn.Conv2d(20, 1, 1)

    def forward(self, x):
        a = F.relu(self.down(x))
        b = F.relu(self.mid(F.max_pool2d(a, 2)))
        return self.out(torch.cat([a, F.interpolate(b, scale_factor=2.0)], dim=1))


train_set, val_set = Blobs(1000, 0), Blobs(150, 1)
loader = DataLoader(train_set, batch_size=2, shuffle=True)
model = FCN()
EPOCHS = 2
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.08, total_steps=EPOCHS * len(loader)
)

for epoch in range(EPOCHS):
    running = 0.0
    for i, (img, mask) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(img), mask)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running = 0.98 * running + 0.02 * loss.item()
        if i % 100 == 0:
            print(f"epoch {epoch} it {i} loss {loss.item():.4f} avg {running:.4f}")

with torch.no_grad():
    imgs, masks = torch.stack(val_set.imgs), torch.stack(val_set.masks)
    print("final", F.binary_cross_entropy_with_logits(model(imgs), masks).item())

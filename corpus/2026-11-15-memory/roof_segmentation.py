"""Roof segmentation on synthetic aerial tiles, with per-epoch train and validation IoU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

torch.set_num_threads(1)
torch.manual_seed(4)


class AerialTiles(Dataset):
    def __init__(self, n, size=64):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        mask = torch.zeros(1, self.size, self.size)
        for _ in range(3):
            y, x = torch.randint(0, self.size - 20, (2,), generator=g).tolist()
            h, w = torch.randint(8, 20, (2,), generator=g).tolist()
            mask[:, y : y + h, x : x + w] = 1
        texture = torch.randn(3, self.size, self.size, generator=g) * 0.5
        return texture + mask * torch.tensor([0.9, 0.4, 0.2]).view(3, 1, 1), mask


class SmallUNet(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.inc = nn.Sequential(nn.Conv2d(3, c, 3, padding=1), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU())
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.outc = nn.Conv2d(3 * c, 1, 3, padding=1)

    def forward(self, x):
        a = self.inc(x)
        return self.outc(torch.cat([a, self.up(self.down(a))], dim=1))


def iou(probs, masks, threshold=0.5):
    inter = union = 0.0
    for p, m in zip(probs, masks):
        hit = p > threshold
        inter += (hit & (m > 0)).sum().item()
        union += (hit | (m > 0)).sum().item()
    return inter / max(union, 1.0)


def main(epochs=3):
    train_set, val_set = random_split(AerialTiles(552), [456, 96])
    loaders = {
        "train": DataLoader(train_set, batch_size=12, shuffle=True),
        "val": DataLoader(val_set, batch_size=24),
    }
    model = SmallUNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    outputs = {"train": {"probs": [], "masks": []}, "val": {"probs": [], "masks": []}}

    for epoch in range(epochs):
        for phase in ("train", "val"):
            model.train(phase == "train")
            bucket = outputs[phase]
            for image, mask in loaders[phase]:
                with torch.set_grad_enabled(phase == "train"):
                    logits = model(image)
                    loss = criterion(logits, mask)
                if phase == "train":
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                bucket["probs"].append(torch.sigmoid(logits.detach()))
                bucket["masks"].append(mask)
            batches = len(loaders[phase])
            score = iou(bucket["probs"][-batches:], bucket["masks"][-batches:])
            print(f"epoch {epoch} {phase}: last loss {loss.item():.4f} iou {score:.3f}")


if __name__ == "__main__":
    main()

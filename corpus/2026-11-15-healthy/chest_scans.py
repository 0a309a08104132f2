import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(11)

SIZE = 192


def write_scans(folder, count):
    rng = np.random.default_rng(11)
    yy, xx = np.mgrid[0:SIZE, 0:SIZE]
    for i in range(count):
        label = int(rng.integers(0, 2))
        cy, cx = rng.integers(50, SIZE - 50, size=2)
        body = 400.0 * np.exp(-((yy - 96) ** 2 + (xx - 96) ** 2) / 6000.0)
        spot = label * 130.0 * np.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / 180.0)
        scan = (body + spot + rng.normal(0, 40, size=(SIZE, SIZE))) // 8
        np.savez_compressed(folder / f"scan_{i:04d}.npz", scan=scan.astype(np.int8), label=label)


class ScanFolder(Dataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.npz"))
        self.decoded = {}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        if index not in self.decoded:
            with np.load(self.files[index]) as entry:
                scan = entry["scan"].astype(np.float32)
                label = int(entry["label"])
            scan = (scan - scan.mean()) / (scan.std() + 1e-6)
            self.decoded[index] = (torch.from_numpy(scan)[None], label)
        return self.decoded[index]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        layers, channels = [], 1
        for width in (8, 16, 32, 48):
            layers += [
                nn.Conv2d(channels, width, 3, stride=2, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(),
            ]
            channels = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 2)

    def forward(self, x):
        return self.head(self.body(x).amax(dim=(2, 3)))


def main():
    work = Path(tempfile.mkdtemp(prefix="scans_"))
    write_scans(work, 288)
    loader = DataLoader(ScanFolder(work), batch_size=16, shuffle=True)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(7):
        seen, correct, total = 0, 0, 0.0
        for scans, labels in loader:
            optimizer.zero_grad()
            logits = model(scans)
            loss = criterion(logits, labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            correct += (logits.argmax(1) == labels).sum().item()
            seen += len(labels)
        print(f"epoch {epoch}: loss {total / seen:.4f} accuracy {correct / seen:.3f}")
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch},
            work / "last.pt",
        )


if __name__ == "__main__":
    main()

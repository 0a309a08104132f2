"""Tumour / stroma patch classifier with a small review album of the hardest patches."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(14)

ALBUM = {"tumour": {}, "stroma": {}}
NAMES = ("stroma", "tumour")


class PatchStore(Dataset):
    def __init__(self, n, size=48):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        label = i % 2
        stain = torch.tensor([0.7, 0.45, 0.65]) if label else torch.tensor([0.8, 0.6, 0.75])
        patch = stain.view(3, 1, 1) + 0.12 * torch.randn(3, self.size, self.size, generator=g)
        nuclei = torch.rand(self.size, self.size, generator=g) < (0.10 if label else 0.05)
        patch[:, nuclei] *= 0.4
        return {"patch": patch, "label": label, "slide": i // 64}


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2, padding=1)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(24, 2)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x)).mean(dim=(2, 3))
        return self.fc(self.drop(x))


def remember_hardest(step, batch, per_patch):
    """Keep the one patch per step that the network got most wrong."""
    worst = int(per_patch.argmax())
    name = NAMES[int(batch["label"][worst])]
    pages = ALBUM[name].setdefault(int(batch["slide"][worst]) // 4, [])
    pages.append({"step": step, "loss": per_patch[worst].item(), "patch": batch["patch"][worst]})


def train():
    loader = DataLoader(PatchStore(1600), batch_size=48, shuffle=True, drop_last=True)
    net = PatchNet()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    step = 0
    for epoch in range(5):
        hits = seen = 0
        for batch in loader:
            logits = net(batch["patch"] - 0.6)
            per_patch = F.cross_entropy(logits, batch["label"], reduction="none")
            opt.zero_grad()
            per_patch.mean().backward()
            opt.step()
            remember_hardest(step, batch, per_patch)
            hits += (logits.argmax(1) == batch["label"]).sum().item()
            seen += len(logits)
            step += 1
        kept = sum(len(p) for pages in ALBUM.values() for p in pages.values())
        print(f"epoch {epoch} accuracy {hits / seen:.3f} album {kept} patches")


if __name__ == "__main__":
    train()

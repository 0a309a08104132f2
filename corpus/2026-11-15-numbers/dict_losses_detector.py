import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Cells(Dataset):
    def __init__(self, n=320, n_anchors=6):
        g = torch.Generator().manual_seed(44)
        self.features = torch.randn(n, 12, generator=g)
        logits = self.features[:, :n_anchors] - 1.0
        self.objectness = (logits + 0.3 * torch.randn(n, n_anchors, generator=g) > 0).float()
        self.boxes = torch.rand(n, n_anchors, 4, generator=g)
        self.kind = torch.randint(0, 3, (n, n_anchors), generator=g)

    def __len__(self):
        return len(self.features)

    def __getitem__(self, i):
        return self.features[i], {
            "objectness": self.objectness[i],
            "boxes": self.boxes[i],
            "kind": self.kind[i],
        }


class Detector(nn.Module):
    def __init__(self, n_anchors=6):
        super().__init__()
        self.n_anchors = n_anchors
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.LayerNorm(48))
        self.heads = nn.ModuleDict(
            {
                "objectness": nn.Linear(48, n_anchors),
                "boxes": nn.Linear(48, 4 * n_anchors),
                "kind": nn.Linear(48, 3 * n_anchors),
            }
        )

    def forward(self, x):
        h = self.trunk(x)
        return {
            "objectness": self.heads["objectness"](h),
            "boxes": self.heads["boxes"](h).view(-1, self.n_anchors, 4),
            "kind": self.heads["kind"](h).view(-1, self.n_anchors, 3),
        }


def compute_losses(out, target):
    positive = target["objectness"]
    losses = {}
    losses["objectness"] = F.binary_cross_entropy_with_logits(out["objectness"], positive)
    l1 = (out["boxes"] - target["boxes"]).abs().sum(dim=-1)
    losses["boxes"] = (l1 * positive).sum() / positive.sum()
    ce = F.cross_entropy(out["kind"].transpose(1, 2), target["kind"], reduction="none")
    losses["kind"] = (ce * positive).sum() / max(positive.sum(), 1)
    return losses


def main():
    torch.manual_seed(22)
    loader = DataLoader(Cells(), batch_size=4, shuffle=True)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weights = {"objectness": 1.0, "boxes": 2.0, "kind": 0.5}
    for step, (x, target) in enumerate(loader):
        losses = compute_losses(model(x), target)
        total = sum({k: weights[k] * v for k, v in losses.items()}.values())
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        if step % 16 == 0:
            parts = " ".join(f"{k}={v.item():.3f}" for k, v in losses.items())
            print(f"step {step} total={total.item():.3f} {parts}")


if __name__ == "__main__":
    main()

"""Patch encoder for tiny images, allocated without storage first and filled in afterwards."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def sinusoid(length, dim):
    position = torch.arange(length).unsqueeze(1)
    scale = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000.0) / dim))
    table = torch.zeros(length, dim)
    table[:, 0::2] = torch.sin(position * scale)
    table[:, 1::2] = torch.cos(position * scale)
    return table


class PatchEncoder(nn.Module):
    def __init__(self, size=16, patch=4, dim=32, classes=3):
        super().__init__()
        self.patchify = nn.Conv2d(1, dim, patch, stride=patch)
        self.positions = sinusoid((size // patch) ** 2, dim)
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def reset_parameters(self):
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
        nn.init.ones_(self.norm.weight)

    def forward(self, images):
        tokens = self.patchify(images).flatten(2).transpose(1, 2)
        tokens = tokens + self.positions
        mixed, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.head(self.norm(tokens + mixed).mean(1))


def build_model(device):
    with torch.device("meta"):
        model = PatchEncoder()
    model = model.to_empty(device=device)
    model.reset_parameters()
    return model


def stripes(count):
    labels = torch.randint(3, (count,))
    axis = torch.arange(16).float()
    patterns = torch.stack(
        [
            torch.sin(axis)[None, :].expand(16, 16),
            torch.sin(axis)[:, None].expand(16, 16),
            torch.sin(axis[:, None] + axis[None, :]),
        ]
    )
    images = patterns[labels] + 0.5 * torch.randn(count, 16, 16)
    return TensorDataset(images.unsqueeze(1), labels)


def main():
    torch.manual_seed(17)
    device = torch.device("cpu")
    loader = DataLoader(stripes(600), batch_size=30, shuffle=True)
    model = build_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    for epoch in range(4):
        hits = 0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            logits = model(images)
            loss = nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            warmup.step()
            hits += (logits.argmax(1) == labels).sum().item()
        print(f"epoch {epoch}: accuracy {hits / 600:.3f}")


if __name__ == "__main__":
    main()

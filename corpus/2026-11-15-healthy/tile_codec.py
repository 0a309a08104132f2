import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(29)


def make_tiles(count, size=32):
    axis = torch.linspace(-1, 1, size)
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    angle = 3.14 * torch.rand(count, 1, 1)
    scale = 3 + 9 * torch.rand(count, 1, 1)
    stripes = torch.sin(scale * (xx * angle.cos() + yy * angle.sin()))
    colour = torch.rand(count, 3, 1, 1)
    return (colour * stripes[:, None]).clamp(-1, 1) + 0.03 * torch.randn(count, 3, size, size)


class Codebook(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.vectors = nn.Parameter(torch.randn(entries, width))
        self.register_buffer("usage", torch.zeros(entries))

    def nearest(self, flat):
        return torch.cdist(flat, self.vectors).argmin(1)

    @torch.no_grad()
    def settle(self, flat, rounds):
        """Lloyd iterations on the current features, as a starting point."""
        for _ in range(rounds):
            owner = self.nearest(flat)
            counts = torch.bincount(owner, minlength=len(self.vectors)).float()
            sums = torch.zeros_like(self.vectors).index_add_(0, owner, flat)
            fresh = flat[torch.randint(len(flat), (len(self.vectors),))]
            means = sums / counts.clamp(min=1)[:, None]
            self.vectors.copy_(torch.where(counts[:, None] > 0, means, fresh))

    def forward(self, features):
        flat = features.permute(0, 2, 3, 1).flatten(0, 2)
        codes = self.nearest(flat)
        self.usage += torch.bincount(codes, minlength=len(self.usage))
        chosen = self.vectors[codes]
        penalty = F.mse_loss(chosen, flat.detach()) + 0.25 * F.mse_loss(flat, chosen.detach())
        passed = flat + (chosen - flat).detach()
        b, _, h, w = features.shape
        return passed.view(b, h, w, -1).permute(0, 3, 1, 2), penalty


class Codec(nn.Module):
    def __init__(self, width=32, entries=128):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.LazyConv2d(48, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.LazyConv2d(64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.LazyConv2d(width, 1),
        )
        self.codebook = Codebook(entries, width)
        self.decoder = nn.Sequential(
            nn.LazyConvTranspose2d(64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.LazyConvTranspose2d(3, 4, stride=2, padding=1),
        )

    def forward(self, tiles):
        quantised, penalty = self.codebook(self.encoder(tiles))
        return self.decoder(quantised), penalty


tiles = make_tiles(1600)
codec = Codec()
with torch.no_grad():
    codec(tiles[:2])
codec.codebook.usage.zero_()
optimizer = torch.optim.AdamW(codec.parameters(), lr=2e-3)

step = 0
for epoch in range(4):
    for rows in torch.randperm(len(tiles)).split(32):
        batch = tiles[rows]
        if step < 12:
            with torch.no_grad():
                features = codec.encoder(batch).permute(0, 2, 3, 1).flatten(0, 2)
            codec.codebook.settle(features, rounds=10)
        rebuilt, penalty = codec(batch)
        reconstruction = F.mse_loss(rebuilt, batch)
        optimizer.zero_grad()
        (reconstruction + penalty).backward()
        optimizer.step()
        step += 1
        if step % 25 == 0:
            print(f"step {step:3d} mse {reconstruction.item():.4f} penalty {penalty.item():.4f}")
    share = codec.codebook.usage / codec.codebook.usage.sum()
    spread = torch.special.entr(share).sum().exp().item()
    print(f"epoch {epoch}: effective codes {spread:.1f}")

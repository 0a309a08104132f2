import torch
import torch.nn.functional as F
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(17)

IDENTITIES = 40
PER_IDENTITY = 12
CFG = {"ids": 6, "shots": 4, "margin": 0.3, "lr": 1e-3, "steps": 160}

prototypes = torch.randn(IDENTITIES, 1, 16, 16)
prototypes = F.interpolate(prototypes, scale_factor=2, mode="bilinear")
faces = prototypes[:, None] + 3.0 * torch.randn(IDENTITIES, PER_IDENTITY, 1, 32, 32)


class Embedder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
        )
        self.proj = nn.Linear(32 * 8 * 8, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.conv(x).flatten(1)), dim=1)


def sample_batch():
    ids = torch.randperm(IDENTITIES)[: CFG["ids"]]
    picks = torch.stack([torch.randperm(PER_IDENTITY)[: CFG["shots"]] for _ in ids])
    images = faces[ids[:, None], picks].flatten(0, 1)
    labels = ids.repeat_interleave(CFG["shots"])
    return images, labels


def violating_triplets(distances, labels, margin):
    triplets = []
    owners = labels.tolist()
    for a, owner in enumerate(owners):
        positives = [i for i, o in enumerate(owners) if o == owner and i != a]
        negatives = [i for i, o in enumerate(owners) if o != owner]
        for p in positives:
            for n in negatives:
                if distances[a, n] < distances[a, p] + margin:
                    triplets.append((a, p, n))
    return triplets


model = Embedder()
optimizer = torch.optim.Adam(model.parameters(), lr=CFG["lr"])
history = []
for step in range(CFG["steps"]):
    images, labels = sample_batch()
    emb = model(images)
    distances = 2 - 2 * emb @ emb.t()
    triplets = violating_triplets(distances.detach(), labels, CFG["margin"])
    if not triplets:
        continue
    a, p, n = torch.tensor(triplets).unbind(1)
    loss = F.relu(distances[a, p] - distances[a, n] + CFG["margin"]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history.append((loss.item(), len(triplets)))
    if step % 40 == 39:
        recent = history[-20:]
        mean = sum(x for x, _ in recent) / len(recent)
        active = sum(k for _, k in recent) / len(recent)
        print(f"step {step + 1}: triplet loss {mean:.4f}, active triplets {active:.0f}")

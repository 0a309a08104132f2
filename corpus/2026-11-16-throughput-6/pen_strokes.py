# Writer verification: embed pen strokes so that strokes of one writer lie together.
import math
import random

import torch
from torch import nn

random.seed(21)
torch.manual_seed(21)
torch.set_num_threads(1)

WRITERS, PER_BATCH, PER_WRITER, POINTS = 30, 7, 4, 32
MARGIN = 0.5

style = torch.randn(WRITERS, 6)


def strokes_of(writer, n):
    s = style[writer]
    t = torch.linspace(0, 2 * math.pi, POINTS).repeat(n, 1) + 0.2 * torch.randn(n, 1)
    x = t / 3 + 0.4 * torch.sin((1.5 + 0.4 * s[0]) * t + s[1])
    y = (0.8 + 0.2 * s[2]) * torch.sin((2 + 0.4 * s[3]) * t + s[4]) + 0.1 * s[5] * t
    return torch.stack([x, y], 1) + 0.3 * torch.randn(n, 2, POINTS)


def sample_batch():
    writers = random.sample(range(WRITERS), PER_BATCH)
    data = torch.cat([strokes_of(w, PER_WRITER) for w in writers])
    ids = [w for w in writers for _ in range(PER_WRITER)]
    return data, ids


class StrokeEncoder(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(2, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
            nn.Conv1d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool1d(4),
        )
        self.fc = nn.Linear(256, dim)

    def forward(self, x):
        return nn.functional.normalize(self.fc(self.conv(x).flatten(1)), dim=1)


def semi_hard_triplets(emb, ids):
    """All (anchor, positive, negative) with the negative inside of the margin."""
    dist = torch.cdist(emb, emb)
    triplets = []
    for a in range(len(ids)):
        for p in range(a + 1, len(ids)):
            if ids[a] != ids[p]:
                continue
            for n in range(len(ids)):
                if ids[n] != ids[a] and dist[a, n] < dist[a, p] + MARGIN:
                    triplets.append((a, p, n))
    return triplets


encoder = StrokeEncoder()
optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-4)
triplet_loss = nn.TripletMarginLoss(margin=MARGIN)
smoothed = None

for step in range(1, 201):
    data, ids = sample_batch()
    emb = encoder(data)
    with torch.no_grad():
        found = semi_hard_triplets(emb, ids)
    if not found:
        continue
    a, p, n = torch.tensor(found).t()
    loss = triplet_loss(emb[a], emb[p], emb[n])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    smoothed = loss.item() if smoothed is None else 0.95 * smoothed + 0.05 * loss.item()
    if step % 50 == 0:
        print(f"step {step}: loss {smoothed:.4f}, {len(found)} triplets")
